package simulated

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/model"
)

// kvElementBytes is the size of one element of a real engine's keys and values:
// bf16.
const kvElementBytes = 2

// SliceBytes is what one layer of a block of blockTokens takes in a real engine
// that runs the model: keys and values in bf16.
func SliceBytes(spec model.Spec, blockTokens int) int {
	return 2 * spec.KVHeads * spec.HeadSize * blockTokens * kvElementBytes
}

// leastSliceBytes is the smallest that Config.SliceBytes may be: enough for records.
func leastSliceBytes(blockTokens int) int { return blockTokens * recordBytes }

// link is the modelled way into a worker's KV memory: what arrives is served one
// after the other at a fixed bandwidth. It is safe for concurrent use.
type link struct {
	slice time.Duration   // the time of one slice
	ctx   context.Context // ends with the engine

	// turn holds a token of whoever is served. Not a mutex: virtual time does not
	// go on while somebody waits for one.
	turn   chan struct{}
	freeAt time.Time
	timer  Timer
}

// ahead is how far the link's time may run before the clock: a shorter wait would
// take longer to arrange than it lasts. It is made up for by the next.
const ahead = 50 * time.Microsecond

// carry returns when so many slices have arrived.
func (l *link) carry(slices int) error {
	l.turn <- struct{}{} // after the engine's end whoever is before us leaves at once
	defer func() { <-l.turn }()
	now := time.Now()
	if l.freeAt.Before(now) {
		l.freeAt = now
	}
	l.freeAt = l.freeAt.Add(time.Duration(slices) * l.slice)
	if left := l.freeAt.Sub(now); left > ahead {
		if err := l.timer.Wait(l.ctx, left); err != nil {
			return fmt.Errorf("the simulated link is closed: %w", err)
		}
	}
	return nil
}

// close frees the timer. The context has ended, so no later wait uses it.
func (l *link) close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.timer.Close()
}
