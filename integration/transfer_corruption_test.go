package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

const (
	// flips are how many bits are turned over, on all transports together.
	flips = 1000
	// flipWorkers are pairs that are spoilt at a time: much of it is waiting.
	flipWorkers = 24
	// freshShare: one transfer of so many is the first on its connection.
	freshShare = 4
)

// No spoilt bit passes: whatever bit of the stream is turned over on its way,
// either the transfer fails, or what is committed is what was sent, byte for byte
// and token for token.
func TestTransferCorruption(t *testing.T) {
	// Short, since a length that was spoilt makes a side wait for what does not come.
	times := pairTimes{lease: 200 * time.Millisecond, answer: 250 * time.Millisecond, connect: 250 * time.Millisecond}
	var pairs []*pair
	var shapes []shape
	for i := range flipWorkers {
		p := newPair(t, faultstest.Transports()[i%3], pairStreams[i/3%2], pairPages[i/6%2].make, times)
		pairs, shapes = append(pairs, p), append(shapes, p.shape())
	}
	var all tally
	var workers sync.WaitGroup
	for i, p := range pairs {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for all.begin(flips) {
				p.spoil(random, shapes[i], &all)
			}
		})
	}
	workers.Wait()
	t.Log(all.String())
	if all.flips < flips || all.harmless == 0 || all.found == 0 || all.unknown == 0 {
		t.Errorf("the flips were not of every kind: %v", all.String())
	}
}

// tally counts how flips ended.
type tally struct {
	mu      sync.Mutex
	flips   int
	pending int
	// found: the transfer failed on both sides. harmless: it was committed, on both
	// sides, as it was sent. unknown: it was committed as it was sent, and the sender
	// was told that it was not.
	found, harmless, unknown int
	hit                      map[string]int
}

// begin says whether another flip is wanted.
func (c *tally) begin(most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flips+c.pending >= most {
		return false
	}
	c.pending++
	return true
}

// count books a flip; nil is one that did not happen.
func (c *tally) count(f *faultstest.Flip, committed bool, sent error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending--
	if f == nil {
		return
	}
	c.flips++
	if c.hit == nil {
		c.hit = map[string]int{}
	}
	outcome := "found"
	switch {
	case !committed:
		c.found++
	case sent == nil:
		c.harmless++
		outcome = "harmless"
	default:
		c.unknown++
		outcome = "committed, sender not told"
	}
	c.hit[fmt.Sprintf("%s: %s", f, outcome)]++
}

// String lists what was hit, and how it ended.
func (c *tally) String() string {
	var lines []string
	for what, n := range c.hit {
		lines = append(lines, fmt.Sprintf("%5d %s", n, what))
	}
	slices.Sort(lines)
	return fmt.Sprintf("%d flips: %d found, %d harmless, %d committed without the sender knowing\n%s",
		c.flips, c.found, c.harmless, c.unknown, strings.Join(lines, "\n"))
}

// shape is what one transfer puts on a connection, frame by frame: the first one
// there, and a later one.
type shape struct{ fresh, later []frameShape }

// frameShape is a frame that a transfer will put on the connection.
type frameShape struct {
	direction faultstest.Direction
	nth       int // in its direction
	bytes     int
	kind      string
}

// of is the frames that a transfer will put on the connection.
func (s shape) of(fresh bool) []frameShape {
	if fresh {
		return s.fresh
	}
	return s.later
}

// shape watches two transfers that nothing happens to.
func (p *pair) shape() shape {
	p.t.Helper()
	var mu sync.Mutex
	var seen []frameShape
	var sent [2]int
	p.proxy.Watch(func(d faultstest.Direction, frame []byte, ended []string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, frameShape{d, sent[d], len(frame), faultstest.FrameName(frame, ended)})
		sent[d]++
	})
	defer p.proxy.Watch(nil)
	whole := func(fresh bool) []frameShape {
		for range 20 {
			if fresh {
				p.proxy.Cut()
			}
			mu.Lock()
			seen, sent = nil, [2]int{}
			mu.Unlock()
			d := p.reserve(p.receiver, 0, 32, sampledTokens(rand.New(rand.NewPCG(1, 2)))...)
			err := d.send(p.sender)
			await(p.t, "the end of a transfer", d.over)
			if err == nil {
				mu.Lock()
				frames := seen
				mu.Unlock()
				return frames
			}
			// A machine that is so busy that the short lease ran out.
		}
		p.t.Fatal("no transfer succeeds although none is spoilt")
		return nil
	}
	return shape{fresh: whole(true), later: whole(false)}
}

// spoil turns over one bit of a transfer, and checks how it ends.
func (p *pair) spoil(random *rand.Rand, s shape, all *tally) {
	fresh := random.IntN(freshShare) == 0
	if fresh {
		p.proxy.Cut()
	}
	flip := p.proxy.Flip(anyBit(random, s.of(fresh)))
	d := p.reserve(p.receiver, random.IntN(pairBlocks-promptBlocks), random.IntN(pairBlocks-promptBlocks), sampledTokens(random)...)
	sent := d.send(p.sender)
	await(p.t, "the reservation's end", d.over)
	committed, failed, wrong := d.result()
	select {
	case <-flip.Done():
	default: // fewer frames went by than before
		all.count(nil, false, nil)
		return
	}
	if wrong != nil {
		p.t.Errorf("a bit of %v : %v", flip, wrong)
	}
	if !committed && sent == nil {
		p.t.Errorf("a bit of %v: the sender takes for committed what failed with %v", flip, failed)
	}
	if sent != nil && !typed(sent) {
		p.t.Errorf("a bit of %v: the sender's error has no type: %v", flip, sent)
	}
	all.count(flip, committed, sent)
}

// sampledTokens are what a commit carries: more than in earnest, so that some of
// them are hit.
func sampledTokens(random *rand.Rand) []int32 {
	tokens := make([]int32, 6)
	for i := range tokens {
		tokens[i] = random.Int32N(4096)
	}
	return tokens
}

// anyBit is a bit of frames like those. For a third of the flips all bytes are
// equally likely, for a third all frames, and for a third all kinds of frames, so
// that small and rare ones get their share.
func anyBit(random *rand.Rand, frames []frameShape) faultstest.Flip {
	var hit frameShape
	switch random.IntN(3) {
	case 0:
		total := 0
		for _, f := range frames {
			total += f.bytes
		}
		at := random.IntN(total)
		for _, f := range frames {
			if hit = f; at < f.bytes {
				break
			}
			at -= f.bytes
		}
	case 1:
		hit = frames[random.IntN(len(frames))]
	default:
		var kinds []string
		for _, f := range frames {
			if !slices.Contains(kinds, f.kind) {
				kinds = append(kinds, f.kind)
			}
		}
		kind := kinds[random.IntN(len(kinds))]
		for hit = frames[random.IntN(len(frames))]; hit.kind != kind; hit = frames[random.IntN(len(frames))] {
		}
	}
	return faultstest.Flip{Direction: hit.direction, Frames: hit.nth, Bytes: random.IntN(hit.bytes), Bit: random.IntN(8)}
}

// typed reports whether an error of a sender says what happened.
func typed(err error) bool {
	var (
		refused *kvtransfer.RefusedError
		failed  *kvtransfer.FailedError
		aborted *kvtransfer.AbortedError
		broken  *kvtransfer.BrokenError
	)
	return errors.As(err, &refused) || errors.As(err, &failed) || errors.As(err, &aborted) || errors.As(err, &broken)
}
