package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEntrantsTakeTurnsInGoingFirst(t *testing.T) {
	t.Parallel()
	order := ""
	takes := func(name string, rate float64) entrant {
		return entrant{name: name, measure: func(context.Context) (float64, error) {
			order += name
			return rate, nil
		}}
	}
	r := rounds{env: &environment{progress: func(string, ...any) {}}}
	before := func(context.Context) error {
		order += " "
		return nil
	}
	require.NoError(t, r.run(t.Context(), 3, before, []entrant{takes("a", 1), takes("b", 2)}))
	assert.Equal(t, " ab ba ab", order)
	assert.Equal(t, []float64{2, 2, 2}, r.of("b").perRun)
	assert.Empty(t, r.of("c").perRun)

	fails := entrant{name: "c", measure: func(context.Context) (float64, error) { return 0, errors.New("half the work") }}
	require.ErrorContains(t, r.run(t.Context(), 1, nil, []entrant{fails}), "half the work")
	assert.Len(t, r.all(), 2, "who failed gets no figure")
}
