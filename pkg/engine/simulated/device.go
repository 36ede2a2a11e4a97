package simulated

import (
	"context"
	"fmt"
)

// Device is what several engines of one process run on, as CPU engines share the
// compute threads: one step at a time, first come, first served.
type Device struct{ turn chan struct{} }

// NewDevice makes a device.
func NewDevice() *Device { return &Device{turn: make(chan struct{}, 1)} }

// enter waits for the turn; a nil device takes all at once.
func (d *Device) enter(ctx context.Context) error {
	if d == nil {
		return ctx.Err()
	}
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the device: %w", ctx.Err())
	}
}

func (d *Device) leave() {
	if d != nil {
		<-d.turn
	}
}
