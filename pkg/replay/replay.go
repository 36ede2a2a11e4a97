package replay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
)

// Result is what became of a log that was done again.
type Result struct {
	Build        string    // that wrote the log
	Began, Until time.Time // of its first and last event
	Cores        map[string]int
	Events       uint64
	Actions      uint64
	// Difference is the first one; nil: every core did the same.
	Difference *Difference
	// Incomplete is why the log ends before its process did; "": it does not.
	Incomplete string
}

// Difference is the first event on which a core does something else than it did.
type Difference struct {
	Number uint64 // of the event in the log, from 1
	Core   string // its kind and number
	Now    time.Time
	eventlog.Difference
}

// Run does again what a log says, up to the first difference or the end of ctx. The error is of a
// log that cannot be read on, and comes with the result so far.
func Run(ctx context.Context, in io.Reader) (Result, error) {
	return run(ctx, in, func(uint64) bool { return false })
}

// run is Run without the events that are to be kept from the cores.
func run(ctx context.Context, in io.Reader, without func(number uint64) bool) (Result, error) {
	result := Result{Cores: make(map[string]int)}
	log, err := open(ctx, in)
	if err != nil {
		return result, err
	}
	result.Build, result.Began, result.Until = log.Build, log.Began, log.Began
	machines := make(map[uint64]machine)
	kinds := make(map[uint64]string)
	for {
		record, err := log.Next()
		if why, is := ended(log, err); is {
			result.Incomplete = why
			return result, nil
		}
		switch {
		case err != nil:
			return result, err
		case record.Kind != "":
			if machines[record.Core], err = newMachine(record.Config); err != nil {
				return result, err
			}
			kinds[record.Core] = record.Kind
			result.Cores[record.Kind]++
			continue
		case record.End:
			delete(machines, record.Core)
			delete(kinds, record.Core)
			continue
		}
		if without(record.Number) {
			continue
		}
		result.Events, result.Until = record.Number, record.Now
		actions, err := machines[record.Core].handle(record.Now, record.Event)
		difference, count := record.Same(actions, err)
		result.Actions += uint64(count)
		if difference != nil {
			result.Difference = &Difference{record.Number, fmt.Sprintf("%s %d", kinds[record.Core], record.Core), record.Now, *difference}
			return result, nil
		}
	}
}

// open begins to read a log, which cannot be read on once ctx has ended.
func open(ctx context.Context, in io.Reader) (*eventlog.Reader, error) {
	codecs, err := NewCodecs()
	if err != nil {
		return nil, err
	}
	until := readFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return in.Read(b)
	})
	return eventlog.NewReader(bufio.NewReaderSize(until, 1<<16), codecs)
}

// ended says whether an error of reading a log is its end, and why that comes before its process's;
// "": it does not.
func ended(log *eventlog.Reader, err error) (incomplete string, is bool) {
	if cut, is := errors.AsType[*eventlog.CutError](err); is {
		return cut.Error(), true
	}
	return log.Why, errors.Is(err, io.EOF)
}

type readFunc func(b []byte) (int, error)

// Read implements io.Reader.
func (f readFunc) Read(b []byte) (int, error) { return f(b) }
