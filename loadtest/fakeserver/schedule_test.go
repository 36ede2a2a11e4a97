package fakeserver_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
)

const ms = time.Millisecond

func TestScheduleStandsStillInAFreeze(t *testing.T) {
	shape := fakeserver.Shape{
		TTFT: fakeserver.Delay{Mean: 200 * ms}, ITL: fakeserver.Delay{Mean: 100 * ms},
		Freezes: []fakeserver.Freeze{{At: 1000 * ms, For: 2000 * ms}},
	}
	cases := []struct {
		name     string
		at       time.Duration
		accepted time.Duration
		tokens   []time.Duration
	}{
		{"before", 0, 0, []time.Duration{200 * ms, 300 * ms, 400 * ms}},
		{"runs into it", 750 * ms, 750 * ms, []time.Duration{950 * ms, 3050 * ms, 3150 * ms}},
		{"token due at its edge", 800 * ms, 800 * ms, []time.Duration{3000 * ms, 3100 * ms}},
		{"comes in it", 1500 * ms, 3000 * ms, []time.Duration{3200 * ms, 3300 * ms}},
		{"after", 4000 * ms, 4000 * ms, []time.Duration{4200 * ms}},
	}
	for _, c := range cases {
		s := shape.Request(0, c.at)
		if s.Accepted != c.accepted {
			t.Errorf("%s: accepted at %s, want %s", c.name, s.Accepted, c.accepted)
		}
		for i, want := range c.tokens {
			if at, n := s.Next(100); at != want || n != 1 {
				t.Errorf("%s: token %d: %d at %s, want one at %s", c.name, i, n, at, want)
			}
		}
	}
}

// For any shape, times do not decrease, none is in a freeze, all tokens are sent, and the
// delays without freezes are as configured.
func TestSchedule(t *testing.T) {
	delay := func(t *rapid.T, name string) fakeserver.Delay {
		mean := rapid.Int64Range(0, int64(time.Second)).Draw(t, name)
		return fakeserver.Delay{Mean: time.Duration(mean), Jitter: time.Duration(rapid.Int64Range(0, mean).Draw(t, name+" jitter"))}
	}
	rapid.Check(t, func(t *rapid.T) {
		shape := fakeserver.Shape{
			TTFT: delay(t, "ttft"), ITL: delay(t, "itl"), Seed: rapid.Uint64().Draw(t, "seed"),
			TokensPerMessage: rapid.IntRange(0, 5).Draw(t, "tokens per message"),
		}
		end := time.Duration(0)
		for range rapid.IntRange(0, 3).Draw(t, "freezes") {
			f := fakeserver.Freeze{
				At:  end + time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "at")),
				For: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "for")),
			}
			shape.Freezes, end = append(shape.Freezes, f), f.At+f.For
		}
		if err := shape.Validate(); err != nil {
			t.Fatal(err)
		}
		number, at := rapid.Uint64().Draw(t, "number"), time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "arrival"))
		s, again := shape.Request(number, at), shape.Request(number, at)
		// Without freezes the same request takes exactly the delays.
		free := shape
		free.Freezes = nil
		unfrozen := free.Request(number, 0)
		last := s.Accepted
		if last < at || shape.Frozen(last) != last {
			t.Fatalf("accepted at %s", last)
		}
		frozen := last - at
		for left := rapid.IntRange(1, 40).Draw(t, "tokens"); left > 0; {
			next, n := s.Next(left)
			if next2, n2 := again.Next(left); next2 != next || n2 != n {
				t.Fatalf("the same request gave %s and %s", next, next2)
			}
			if next < last || n < 1 || n > left || shape.Frozen(next) != next {
				t.Fatalf("%d of %d tokens at %s after %s", n, left, next, last)
			}
			// Freezes in between, and nothing else, are added.
			lost := time.Duration(0)
			for _, f := range shape.Freezes {
				if f.At >= last && f.At+f.For <= next {
					lost += f.For
				}
			}
			plain, _ := unfrozen.Next(left)
			if frozen += lost; next-at-frozen != plain {
				t.Fatalf("token at %s after %s of freezes, want %s after the start", next-at, frozen, plain)
			}
			last, left = next, left-n
		}
	})
}

func TestShapeValidate(t *testing.T) {
	cases := []struct {
		shape fakeserver.Shape
		want  string
	}{
		{fakeserver.Shape{TTFT: fakeserver.Delay{Mean: ms, Jitter: 2 * ms}}, "jitter"},
		{fakeserver.Shape{ITL: fakeserver.Delay{Mean: -ms}}, "ITL"},
		{fakeserver.Shape{Freezes: []fakeserver.Freeze{{At: 0, For: 2 * ms}, {At: ms, For: ms}}}, "overlap"},
		{fakeserver.Shape{Slots: -1}, "slots"},
		{fakeserver.Shape{FailShare: 1.5}, "shares"},
	}
	for _, c := range cases {
		if err := c.shape.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want an error with %q", c.shape, err, c.want)
		}
	}
}
