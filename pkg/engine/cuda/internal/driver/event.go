package driver

/*
#include "tdm_driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
)

// Event marks a place in a stream. Recording it again moves it. An event that was never
// recorded counts as reached.
type Event struct {
	owned
	handle C.CUevent
	timing bool
}

// NewEvent makes an event without a time, which is the cheaper kind.
func (v *Device) NewEvent() (*Event, error) { return v.newEvent(false) }

// NewTimer makes an event for Elapsed.
func (v *Device) NewTimer() (*Event, error) { return v.newEvent(true) }

func (v *Device) newEvent(timing bool) (*Event, error) {
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	kept := C.int(0)
	if timing {
		kept = 1
	}
	o := C.tdm_event_open(v.c, kept)
	if err := v.driver.check(o); err != nil {
		return nil, fmt.Errorf("make an event: %w", err)
	}
	return &Event{owned: owned{device: v}, handle: C.CUevent(o.made), timing: timing}, nil
}

// Synchronize waits until the event is reached. The error may come from earlier work.
func (e *Event) Synchronize() error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.device.enter(); err != nil {
		return err
	}
	defer e.device.leave()
	if err := e.device.driver.check(C.tdm_event_synchronize(e.device.c, e.handle)); err != nil {
		return fmt.Errorf("wait for an event: %w", err)
	}
	return nil
}

// Elapsed is the device's time between start and e. Both are timers and reached.
func (e *Event) Elapsed(start *Event) (time.Duration, error) {
	if err := errors.Join(start.usable(), e.usable()); err != nil {
		return 0, err
	}
	if !start.timing || !e.timing {
		return 0, errors.New("an event records no time: make both with NewTimer")
	}
	if err := e.device.enter(); err != nil {
		return 0, err
	}
	defer e.device.leave()
	var milliseconds C.float
	if err := e.device.driver.check(C.tdm_event_elapsed(e.device.c, start.handle, e.handle, &milliseconds)); err != nil {
		return 0, fmt.Errorf("read the time between events: %w", err)
	}
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), nil
}

// Close drops the event.
func (e *Event) Close() error {
	return e.close("drop an event", func() C.tdm_outcome { return C.tdm_event_close(e.device.c, e.handle) })
}

func (e *Event) usable() error { return e.open("event") }
