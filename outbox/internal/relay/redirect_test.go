package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// A relay of many topics forgot with an idle topic that an operator had redirected it, until its next poll was answered.
func TestRedirectOfAnIdleTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.redirects["a"] = "b"
	n := w.start()
	w.write("a", "", 0)
	for i := range topic.MaxIdle + 100 {
		w.write(fmt.Sprint("topic ", i), "", 0)
	}
	for len(n.core.topics) <= topic.MaxIdle {
		w.run(10 * time.Millisecond)
	}
	n.unpolled = true // the database does not answer the poll that comes with the forgetting
	w.run(2 * time.Second)
	require.Empty(t, w.rows)
	require.Less(t, len(n.core.topics), topic.MaxIdle)
	w.write("a", "", 0)
	n.core.Apply(w.now, step.Woken{All: true})
	w.run(time.Second)
	require.Empty(t, w.rows)
	assert.Empty(t, w.disobeyed)
	assert.Equal(t, 2, w.topic("b").took)
}
