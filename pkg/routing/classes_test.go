package routing_test

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

func TestClasses(t *testing.T) {
	for text, want := range map[string]string{
		"interactive=ttft:500ms,tpot:30ms": "interactive=ttft:500ms,tpot:30ms",
		"standard=tpot:30ms":               "standard=tpot:30ms",
		"batch=none":                       "batch=none",
		"interactiv=ttft:1s":               `did you mean "interactive"?`,
		"ttft:1s":                          "write NAME=",
		"batch=ttft:0s":                    "is no objective",
		"batch=ttft:1s,ttfb:2s":            "there are ttft and tpot",
		"batch=":                           "is no objective",
	} {
		var c routing.Classes
		err := c.Set(text)
		if got := c.String(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, error %v, want %q", text, got, err, want)
		}
	}
	c := config()
	c.DefaultClass = "bulk"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "default-class") {
		t.Errorf("error %v", err)
	}
}

// A request has the objective that it sends, else its class's, else the default class's. By the
// last alone it is refused for a busy worker, and not for a slow one.
func TestObjectives(t *testing.T) {
	for _, test := range []struct {
		name  string
		class string
		ttft  time.Duration
		busy  uint64 // tokens that wait before it
		want  bool
	}{
		{"nothing, idle", "", 0, 0, true},
		{"nothing, busy", "", 0, 100000, false},
		{"a class that wants nothing, busy", routing.ClassBatch, 0, 100000, true},
		{"a class that wants more, idle", routing.ClassInteractive, 0, 0, false},
		{"its own word, busy", "", time.Hour, 100000, true},
		{"its own word, idle", "", time.Millisecond, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, func(c *routing.Config) {
				c.DefaultClass = routing.ClassStandard
				// Its prompt takes 22 ms on an idle worker.
				c.Classes = routing.Classes{routing.ClassStandard: {TTFT: 20 * time.Millisecond}, routing.ClassInteractive: {TTFT: 10 * time.Millisecond}}
			}, prefill("p1"), decode("d1"))
			b.arrive(b.request(dis, 10)) // both have one of this router's
			b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.WaitingTokens = test.busy }))
			b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
			r := b.request(dis, 200)
			r.Class, r.TTFT = test.class, test.ttft
			d, refusal, _ := b.arrive(r)
			if d.Decode.ID == "" && test.want && refusal.Reason == "" {
				b.do(load("p1", controlv1.Role_ROLE_PREFILL, nil)) // it waited for that
				d, refusal, _ = answerTo(r.ID, b.last)
			}
			if taken := d.Decode.ID != ""; taken != test.want || !taken && refusal.Reason != api.ReasonSLOUnattainable {
				t.Errorf("taken %v, %+v", taken, refusal)
			}
		})
	}
}

// To try again later helps only if it takes too long because of others.
func TestAdviceOfARefusal(t *testing.T) {
	for _, test := range []struct {
		busy       uint64 // tokens that wait before it
		ttft, tpot time.Duration
		want       string
	}{
		{0, time.Millisecond, 0, " exceeds slo.ttft 1ms; ask for more time"},
		{10000, time.Millisecond, 0, " exceeds slo.ttft 1ms; ask for more time"},
		{10000, 100 * time.Millisecond, 0, " exceeds slo.ttft 100ms; retry later or ask for more time"},
		{0, 0, time.Microsecond, " exceeds slo.tpot 1µs; ask for more time"},
	} {
		b := newBench(t, nil, prefill("p1"), decode("d1"))
		b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.WaitingTokens = test.busy }))
		b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
		r := b.request(dis, 200)
		r.TTFT, r.TPOT = test.ttft, test.tpot
		if _, refusal, _ := b.arrive(r); !strings.HasSuffix(refusal.Message, test.want) {
			t.Errorf("%+v: %q", test, refusal.Message)
		}
	}
}

// What prompts took of a worker's time that is idle by now, or how much longer than predicted
// tokens took there, does not refuse a request that asked for nothing.
func TestAnIdleWorkerIsNotTooSlow(t *testing.T) {
	b := newBench(t, func(c *routing.Config) {
		c.DefaultClass = routing.ClassStandard
		c.Classes = routing.Classes{routing.ClassStandard: {TTFT: time.Nanosecond, TPOT: time.Nanosecond}}
	}, decode("d1"))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	for range 30 {
		r := b.request(agg, 1900)
		r.MaxNew = 32
		if d, refusal, _ := b.arrive(r); d.Decode.ID == "" {
			t.Fatalf("refused: %+v", refusal)
		}
		b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 32, Decoding: time.Minute})
		b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	}
}

func FuzzParseObjective(f *testing.F) {
	for _, seed := range []string{"none", "ttft:500ms,tpot:30ms", "ttft:1s, tpot:", "ttft:-1s", "tpot:9999999h", ",,:", "ttft:1s,ttft:2s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if o, err := routing.ParseObjective(text); err == nil && (o.TTFT < 0 || o.TPOT < 0 || text != "none" && o == (routing.Objective{})) {
			t.Errorf("%q is %+v", text, o)
		}
	})
}
