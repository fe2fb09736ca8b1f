package doctor

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/service"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/schedule"
)

// schedules reports schedules that no process fires.
func (d *doctor) schedules(ctx context.Context) error {
	if !d.there["schedule"] {
		return nil
	}
	found, err := schedule.List(ctx, d.pool, d.Schema)
	for _, e := range found {
		if e.Overdue() > d.Limits.Lag {
			d.find("schedules", fmt.Sprintf("schedule %s of service %s is overdue by %s", e.Name, e.Service, words.Duration(e.Overdue())),
				"no process of the service runs, or it cannot publish the event, or the schedule was removed from the service",
				"start the service, and see \"fire a schedule\" in its log; if the schedule was removed: "+d.command(service.Scoped(e.Service, e.Name), "schedule", "forget"))
		}
	}
	return err
}
