// Package lacking has tests that a machine without tea and sugar cannot run.
package lacking

import (
	"errors"
	"testing"

	"github.com/millrace-go/millrace/internal/notrun"
)

var errNone = errors.New("none on this machine")

func TestTea(t *testing.T) {
	for _, name := range []string{"black", "green"} {
		t.Run(name, func(t *testing.T) { notrun.Skip(t, "tea: boil water", errNone) })
	}
}

func TestMoreTea(t *testing.T) { notrun.Skip(t, "tea: boil water", errNone) }

func TestSugar(t *testing.T) { notrun.Note(t, "sugar: ask a neighbour") }

func TestWater(*testing.T) {}

func TestSpilled(t *testing.T) { t.Error("spilled") }
