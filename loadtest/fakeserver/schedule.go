package fakeserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Shape is the injected latency. The zero value answers at once.
type Shape struct {
	// TTFT is the time from the start of service to the first token.
	TTFT Delay
	// ITL is the time between tokens after it.
	ITL Delay
	// TokensPerMessage is how many tokens a message carries, except the first, which
	// carries one, and the last. They are sent when the last of them is due. 0: 1.
	TokensPerMessage int
	// Coalesce is how long a due token may wait to be sent with others. It is not part of
	// the schedule. 0: none.
	Coalesce time.Duration
	// Freezes are times in which the server stands still: it accepts and sends nothing,
	// and no delay passes. They are in order and do not overlap.
	Freezes []Freeze
	// Slots is how many requests are served concurrently, Queue how many wait for a slot;
	// further ones are refused. Slots 0: no limit.
	Slots, Queue int
	// RejectShare of the requests are refused regardless of load, 0 to 1.
	RejectShare float64
	// FailShare of the requests break off after their first token, 0 to 1.
	FailShare float64
	// Seed of jitter and shares. Equal requests draw equal values.
	Seed uint64
}

// Delay is uniform between Mean-Jitter and Mean+Jitter.
type Delay struct{ Mean, Jitter time.Duration }

// Freeze is a time in which the server stands still. At is since its start.
type Freeze struct{ At, For time.Duration }

// Validate checks the shape. The error says what to do.
func (s Shape) Validate() error {
	for _, d := range []struct {
		name  string
		delay Delay
	}{{"TTFT", s.TTFT}, {"ITL", s.ITL}} {
		if d.delay.Mean < 0 || d.delay.Jitter < 0 || d.delay.Jitter > d.delay.Mean {
			return fmt.Errorf("%s %s with a jitter of %s: give a mean from 0 and a jitter from 0 to the mean", d.name, d.delay.Mean, d.delay.Jitter)
		}
	}
	end := time.Duration(0)
	for _, f := range s.Freezes {
		if f.At < end || f.For < 0 {
			return fmt.Errorf("freeze of %s at %s: give freezes in order, without overlap", f.For, f.At)
		}
		end = f.At + f.For
	}
	if s.TokensPerMessage < 0 || s.Coalesce < 0 || s.Slots < 0 || s.Queue < 0 {
		return errors.New("tokens per message, coalescing, slots and queue must not be negative")
	}
	if bad := func(share float64) bool { return !(share >= 0 && share <= 1) }; bad(s.RejectShare) || bad(s.FailShare) {
		return errors.New("shares must be from 0 to 1")
	}
	return nil
}

// working is the time until at in which the server was not frozen.
func (s Shape) working(at time.Duration) time.Duration {
	work := at
	for _, f := range s.Freezes {
		if at <= f.At {
			break
		}
		work -= min(f.For, at-f.At)
	}
	return work
}

// moment is when the server has worked for so long: the inverse of working. At a freeze
// it is the freeze's end, since nothing is sent before.
func (s Shape) moment(work time.Duration) time.Duration {
	at := work
	for _, f := range s.Freezes {
		if at < f.At {
			break
		}
		at += f.For
	}
	return at
}

// Frozen returns the end of the freeze that at lies in, or at itself.
func (s Shape) Frozen(at time.Duration) time.Duration {
	for _, f := range s.Freezes {
		if at >= f.At && at < f.At+f.For {
			return f.At + f.For
		}
	}
	return at
}

// Request returns the schedule of a request whose service begins at at, since the
// server's start. Numbers count from 0; equal numbers have equal jitter.
func (s Shape) Request(number uint64, at time.Duration) *Schedule {
	r := &Schedule{shape: s, chance: rand.NewPCG(s.Seed, number)}
	// Always draw both, so that one share does not affect the other.
	reject, fail := r.share(), r.share()
	r.Reject, r.Fail = reject < s.RejectShare, fail < s.FailShare
	r.work = s.working(at)
	r.Accepted = s.moment(r.work)
	return r
}

// Schedule is when one request's tokens are due. Not for concurrent use.
type Schedule struct {
	// Accepted is when the request is accepted: on arrival, or at the end of the freeze
	// it arrived in.
	Accepted time.Duration
	// Reject: refuse it on acceptance. Fail: break off after one token.
	Reject, Fail bool

	shape  Shape
	chance *rand.PCG
	work   time.Duration
	sent   int
}

// Next returns when the next message is due, since the server's start, and its number of
// tokens, at most remaining, which must be at least 1.
func (s *Schedule) Next(remaining int) (at time.Duration, tokens int) {
	if s.sent == 0 {
		s.sent = 1
		s.work += s.draw(s.shape.TTFT)
		return s.shape.moment(s.work), 1
	}
	tokens = min(max(1, s.shape.TokensPerMessage), remaining)
	for range tokens {
		s.work += s.draw(s.shape.ITL)
	}
	s.sent += tokens
	return s.shape.moment(s.work), tokens
}

func (s *Schedule) draw(d Delay) time.Duration {
	if d.Jitter == 0 {
		return d.Mean
	}
	return d.Mean + time.Duration((2*s.share()-1)*float64(d.Jitter))
}

func (s *Schedule) share() float64 { return float64(s.chance.Uint64()>>11) / (1 << 53) }
