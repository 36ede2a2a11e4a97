package parallel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each piece of work is done once, and heard of once, by any number of workers.
func TestAllIsDone(t *testing.T) {
	const n = 100
	for _, workers := range []int{-1, 0, 1, 3, 1000} {
		var worked [n]atomic.Int32
		var heard [n]int
		err := parallel.Do(t.Context(), workers, n, func(i int64) error {
			worked[i].Add(1)
			return nil
		}, func(i int64) { heard[i]++ })
		if err != nil {
			t.Errorf("%d workers: %v", workers, err)
		}
		for i := range n {
			if worked[i].Load() != 1 || heard[i] != 1 {
				t.Errorf("%d workers: %d is done %d times and heard of %d times", workers, i, worked[i].Load(), heard[i])
			}
		}
	}
	if err := parallel.Do(t.Context(), 2, 0, nil, nil); err != nil {
		t.Errorf("no work: %v", err)
	}
}

// An error ends the work, and so does the end of the context.
func TestItEndsEarly(t *testing.T) {
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		want error
		work func(end context.CancelFunc) error
	}{
		"an error":    {wrong, func(context.CancelFunc) error { return wrong }},
		"the context": {context.Canceled, func(end context.CancelFunc) error { end(); return nil }},
	} {
		for _, workers := range []int{1, 4} {
			ctx, end := context.WithCancel(t.Context())
			var begun atomic.Int64
			heard := int64(0)
			err := parallel.Do(ctx, workers, 1000, func(i int64) error {
				begun.Add(1)
				if i >= 10 {
					return c.work(end)
				}
				return nil
			}, func(int64) { heard++ })
			end()
			if !errors.Is(err, c.want) || heard > begun.Load() || begun.Load() <= 10 || begun.Load() == 1000 {
				t.Errorf("%s, %d workers: %v, %d begun, %d heard of", name, workers, err, begun.Load(), heard)
			}
		}
	}
}
