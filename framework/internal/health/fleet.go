package health

import (
	"fmt"
	"net/http"

	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/outbox/fleet"
)

// RegisterFleet adds /healthz and /readyz for a fleet. A running fleet is always ready: a restart repairs no database, and the
// other databases need the process.
func RegisterFleet(mux *web.Routes, f *fleet.Fleet) {
	mux.HandleFunc("GET "+web.LivePath, func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET "+web.ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		all := f.Status()
		fmt.Fprintf(w, "databases: %d\n", len(all))
		for _, d := range all {
			if d.Failures > 0 {
				fmt.Fprintf(w, "database %s has failed %d times in a row: %v\n", d.Name, d.Failures, d.Error)
			}
		}
	})
}
