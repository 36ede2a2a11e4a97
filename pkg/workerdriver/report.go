package workerdriver

import (
	"context"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Report publishes the driver's load, on change and at least each second, until
// ctx ends. publish does not block.
func (d *Driver) Report(ctx context.Context, role controlv1.Role, publish func(*controlv1.LoadReport)) {
	ReportLoad(ctx, publish, api.ReportSpacing, func() (*controlv1.LoadReport, <-chan struct{}) {
		changed := d.Changed()
		report := d.loadReport(role)
		d.cfg.Metrics.load(report, d.PoolStats())
		d.complain()
		return report, changed
	})
}

// ReportLoad publishes a worker's load, on change and at least each second, until ctx
// ends. Two reports are at least the given time apart. load is the report now, and a
// channel closed on the next change. publish does not block.
func ReportLoad(ctx context.Context, publish func(*controlv1.LoadReport), apart time.Duration, load func() (*controlv1.LoadReport, <-chan struct{})) {
	schedule := worker.ReportSchedule{Apart: apart, Every: worker.ReportEvery}
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		report, changed := load()
		publish(report)
		schedule.Reported(time.Now())
		for reported := false; !reported; {
			due.Reset(time.Until(schedule.Next()))
			select {
			case <-ctx.Done():
				return
			case <-changed:
				schedule.Changed()
				changed = nil
			case <-due.C:
				reported = true
			}
		}
	}
}

func (d *Driver) loadReport(role controlv1.Role) *controlv1.LoadReport {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.LoadReport(role)
}
