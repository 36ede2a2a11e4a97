package worker

import (
	"context"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// reportEvery is how often a load report goes out when nothing changes.
	reportEvery = time.Second
	// reportSpacing is the least time between two reports. A router counts its
	// own requests itself, so a report need not be instant.
	reportSpacing = 25 * time.Millisecond
)

// LoadPublisher takes load reports. It never blocks.
type LoadPublisher interface {
	Load(report *controlv1.LoadReport)
}

// Report publishes the driver's load, on change and at least each second, until
// ctx ends.
func (d *Driver) Report(ctx context.Context, role controlv1.Role, publisher LoadPublisher) {
	ReportLoad(ctx, publisher, reportSpacing, func() (*controlv1.LoadReport, <-chan struct{}) {
		changed := d.Changed()
		report := d.LoadReport(role)
		d.cfg.Metrics.load(report)
		d.complain()
		return report, changed
	})
}

// ReportLoad publishes a worker's load, on change and at least each second, until ctx
// ends. Two reports are at least the given time apart. load is the report now, and a
// channel closed on the next change.
func ReportLoad(ctx context.Context, publisher LoadPublisher, apart time.Duration, load func() (*controlv1.LoadReport, <-chan struct{})) {
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		report, changed := load()
		publisher.Load(report)
		spacing := time.NewTimer(apart)
		beat.Reset(reportEvery)
		select {
		case <-ctx.Done():
			spacing.Stop()
			return
		case <-spacing.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-beat.C:
		}
	}
}

// LoadReport is the driver's load as it is published. Origin is the publisher's
// to fill in.
func (d *Driver) LoadReport(role controlv1.Role) *controlv1.LoadReport {
	load, model := d.Load()
	return &controlv1.LoadReport{
		Role:                 role,
		WaitingSequences:     uint32(load.WaitingSequences),
		WaitingTokens:        uint64(load.WaitingTokens),
		RunningSequences:     uint32(load.RunningSequences),
		RunningContextTokens: uint64(load.RunningContextTokens),
		BlocksFree:           uint32(load.BlocksFree - load.BlocksExpected),
		BlocksReserved:       uint32(load.BlocksReserved),
		BlocksQuarantined:    uint32(load.BlocksQuarantined),
		BlocksTotal:          uint32(load.BlocksTotal),
		StepTime: &controlv1.StepTimeModel{
			BaseMs: model.BaseMs, PerTokenMs: model.PerTokenMs, PerContextTokenMs: model.PerContextTokenMs, Samples: model.Samples,
		},
	}
}
