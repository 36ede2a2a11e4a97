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
func (d *Driver) Report(ctx context.Context, role controlv1.Role, publisher LoadPublisher) error {
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		changed := d.Changed()
		report := d.LoadReport(role)
		publisher.Load(report)
		d.cfg.Metrics.load(report)
		spacing := time.NewTimer(reportSpacing)
		beat.Reset(reportEvery)
		select {
		case <-ctx.Done():
			spacing.Stop()
			return nil
		case <-spacing.C:
		}
		select {
		case <-ctx.Done():
			return nil
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
