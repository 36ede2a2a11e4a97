package simulate_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/simulate"
)

// served counts the requests due in a time by the decode worker that served them.
func served(r *record.Run, from, to time.Duration) map[string]int {
	n := make(map[string]int)
	for _, rec := range r.Records {
		if rec.Due >= from && rec.Due < to {
			n[rec.Route.GetDecode()]++
		}
	}
	return n
}

// Whatever happens, every request ends well, and where it should.
func TestEvents(t *testing.T) {
	const second = time.Second
	at := func(at time.Duration, do simulate.Action) simulate.Event { return simulate.Event{At: at, Do: do} }
	d1, p1 := simulate.Hosts{"d-1"}, simulate.Hosts{"p-1", "p-2", "router-1"}
	for _, test := range []struct {
		name   string
		down   []string // workers that do not run at first
		events []simulate.Event
		// without and with are times in which d-1 serves nothing, and something.
		without, with [2]time.Duration
	}{
		{"drain and undrain", nil, []simulate.Event{at(4*second, simulate.Drain{Worker: "d-1"}), at(12*second, simulate.Undrain{Worker: "d-1"})},
			[2]time.Duration{5 * second, 12 * second}, [2]time.Duration{13 * second, 20 * second}},
		{"scale down and up", nil, []simulate.Event{at(4*second, simulate.Scale{Pool: "d", To: 0}), at(12*second, simulate.Scale{Pool: "d", To: 1})},
			[2]time.Duration{5 * second, 12 * second}, [2]time.Duration{13 * second, 20 * second}},
		{"scale up", []string{"d-1"}, []simulate.Event{at(10*second, simulate.Scale{Pool: "d", To: 1})},
			[2]time.Duration{0, 10 * second}, [2]time.Duration{12 * second, 20 * second}},
		{"a partition", nil, []simulate.Event{at(2*second, simulate.Cut{Between: [2]simulate.Hosts{d1, p1}}), at(30*second, simulate.Heal{Between: [2]simulate.Hosts{d1, p1}})},
			[2]time.Duration{8 * second, 30 * second}, [2]time.Duration{33 * second, 40 * second}},
		{"a short partition", nil, []simulate.Event{at(5*second, simulate.Cut{Between: [2]simulate.Hosts{d1, p1}}), at(6*second, simulate.Heal{Between: [2]simulate.Hosts{p1, d1}})},
			[2]time.Duration{}, [2]time.Duration{12 * second, 20 * second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config(2, 3)
			for _, w := range c.Workers {
				if w.ID == "d-1" {
					w.Pool, w.Down = "d", len(test.down) > 0
				}
			}
			c.Events = test.events
			r := run(t, c, 30, 40*time.Second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-100", "--seed=4")
			if n := outcomes(r); n["completed"] != len(r.Records) {
				t.Error(n)
			}
			if n := served(r, test.without[0], test.without[1]); n["d-1"] > 0 {
				t.Errorf("from %v to %v, d-1 should serve nothing: %v", test.without[0], test.without[1], n)
			}
			if n := served(r, test.with[0], test.with[1]); n["d-1"] == 0 {
				t.Errorf("from %v to %v, d-1 should serve: %v", test.with[0], test.with[1], n)
			}
		})
	}
}

// What a link carries, all who use it share.
func TestLinks(t *testing.T) {
	slow := func(change func(*simulate.Network)) time.Duration {
		c := config(2, 2)
		c.Mode = disaggregated
		change(&c.Network)
		r := run(t, c, 10, 10*time.Second, "--prompt-tokens=512", "--output-tokens=4", "--seed=4")
		if n := outcomes(r); n["completed"] != len(r.Records) {
			t.Error(n)
		}
		total := time.Duration(0)
		for _, rec := range r.Records {
			total += rec.End - rec.Due
		}
		return total / time.Duration(len(r.Records))
	}
	between := [2]simulate.Hosts{{"p-1", "p-2"}, {"d-1", "d-2"}}
	plain := slow(func(*simulate.Network) {})
	for name, change := range map[string]func(*simulate.Network){
		"a shared link": func(n *simulate.Network) { n.Links = []simulate.Link{{Between: between, BytesPerSecond: 100e6}} },
		"slow pairs":    func(n *simulate.Network) { n.Pairs = []simulate.Pair{{Between: between, BytesPerSecond: 50e6}} },
		"latency of pairs": func(n *simulate.Network) {
			n.Pairs = []simulate.Pair{{Between: between, Latency: 20 * time.Millisecond}}
		},
		"the link of one rack": func(n *simulate.Network) {
			n.Links = []simulate.Link{{Between: [2]simulate.Hosts{{"p-1", "p-2"}, nil}, BytesPerSecond: 100e6}}
		},
	} {
		if got := slow(change); got < plain+20*time.Millisecond {
			t.Errorf("%s: requests take %v, and %v without", name, got, plain)
		}
	}
}

// Calls read what was counted until then: in between, each request had a decision.
func TestCall(t *testing.T) {
	const from, to = 5 * time.Second, 15 * time.Second
	var before, during simulate.Signals
	c := config(0, 2)
	c.Routing.HedgeShare = 0
	c.Events = []simulate.Event{
		{At: from, Do: simulate.Call(func(c *simulate.Cluster) { before = c.Signals() })},
		{At: to, Do: simulate.Call(func(c *simulate.Cluster) { during = c.Signals().Since(before) })},
	}
	r := run(t, c, 5, 20*time.Second, "--prompt-tokens=100", "--output-tokens=5")
	due := 0
	for _, of := range r.Records {
		if of.Due > from && of.Due <= to {
			due++
		}
	}
	if before.Decisions == 0 || during.Decisions != due || during.LoadReports == 0 {
		t.Errorf("%d requests had %+v, after %+v", due, during, before)
	}
}
