package driver

/*
#include "tdm_driver.h"
*/
import "C"

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Priority says which stream's blocks the device takes first.
type Priority int

// The priorities: Low is the device's least, High its greatest. On a device that has but
// two, Middle is Low.
const (
	Low Priority = iota
	Middle
	High

	priorities = iota
)

// Stream is a queue of work, done in order. Streams wait for each other through events
// only.
type Stream struct {
	owned
	handle C.CUstream
	waited atomic.Int64 // nanoseconds
}

// NewStream makes a stream.
func (v *Device) NewStream(priority Priority) (*Stream, error) {
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	o := C.tdm_stream_open(v.c, C.int(priority), priorities)
	if err := v.driver.check(o); err != nil {
		return nil, fmt.Errorf("make a stream: %w", err)
	}
	return &Stream{owned: owned{device: v}, handle: C.CUstream(o.made)}, nil
}

// Submit enqueues the program's operations, in one cgo call, and returns before they ran.
// After an error those before the one that it names are enqueued.
func (s *Stream) Submit(p *Program) error {
	if err := s.submit(p, 0); err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	return nil
}

// Run is Submit and Synchronize in one cgo call.
func (s *Stream) Run(p *Program) error {
	if err := s.submit(p, 1); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

func (s *Stream) submit(p *Program, wait C.int) error {
	if err := s.begin(p); err != nil {
		return err
	}
	defer s.device.leave()
	o := C.tdm_submit(s.device.c, s.handle, p.memory, C.size_t(p.size), wait)
	s.waited.Add(int64(o.waited))
	return p.failed(o)
}

// Waited is how long all calls of Run and Synchronize have waited for the device: those of
// Run after they had handed their programs over.
func (s *Stream) Waited() time.Duration { return time.Duration(s.waited.Load()) }

// begin enters the device if stream and program can be used.
func (s *Stream) begin(p *Program) error {
	if err := s.usable(); err != nil {
		return err
	}
	if p.device != s.device {
		return errForeign
	}
	if err := p.ready(); err != nil {
		return err
	}
	return s.device.enter()
}

// Synchronize waits for all that was submitted. The error may be that of any of it.
func (s *Stream) Synchronize() error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.device.enter(); err != nil {
		return err
	}
	defer s.device.leave()
	begin := time.Now()
	err := s.device.driver.check(C.tdm_stream_synchronize(s.device.c, s.handle))
	s.waited.Add(int64(time.Since(begin)))
	if err != nil {
		return fmt.Errorf("wait for a stream: %w", err)
	}
	return nil
}

// Close drops the stream. What was submitted still runs.
func (s *Stream) Close() error {
	return s.close("drop a stream", func() C.tdm_outcome { return C.tdm_stream_close(s.device.c, s.handle) })
}

func (s *Stream) usable() error { return s.open("stream") }

// Graph is a program that was prepared once, to be launched at less cost.
type Graph struct {
	owned
	handle C.CUgraphExec
}

// Capture prepares a graph of the program's operations, in one cgo call, and runs none of
// them. Arguments, addresses and sizes are kept as they are; functions, events and pinned
// memory must outlive the graph. Records and awaits act at each launch.
func (s *Stream) Capture(p *Program) (*Graph, error) {
	if err := s.begin(p); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	defer s.device.leave()
	for i, r := range p.uses {
		if _, nested := r.(*Graph); nested {
			return nil, fmt.Errorf("capture: operation %d is a graph: a graph cannot hold another", i)
		}
	}
	o := C.tdm_capture(s.device.c, s.handle, p.memory, C.size_t(p.size))
	if err := p.failed(o); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return &Graph{owned: owned{device: s.device}, handle: C.CUgraphExec(o.made)}, nil
}

// Close drops the graph. No launch of it may be under way.
func (g *Graph) Close() error {
	return g.close("drop a graph", func() C.tdm_outcome { return C.tdm_graph_close(g.device.c, g.handle) })
}

func (g *Graph) usable() error { return g.open("graph") }
