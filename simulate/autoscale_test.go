package simulate_test

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/simulate"
)

const startTime = 7 * time.Second

// scaled is a cluster whose pools follow the load, of at most most workers each.
func scaled(policy string, most int) simulate.Config {
	c := config(most, most)
	for i, w := range c.Workers {
		w.Pool, w.Down = "p", i > 0
		if w.Role == controlv1.Role_ROLE_DECODE {
			w.Pool, w.Down = "d", i > most
		}
	}
	a := simulate.Autoscale{
		Config: scaling.DefaultConfig(), Policy: policy, Prefill: "p", Decode: "d", Every: 2 * time.Second, StartTime: startTime,
		TargetUtilisation: 0.7, TargetTokens: 500,
	}
	a.Bounds = scaling.Bounds{Prefill: scaling.Range{Min: 1, Max: most}, Decode: scaling.Range{Min: 1, Max: most}}
	a.DownAfter = 20 * time.Second
	c.Autoscale = &a
	c.TTFT, c.TPOT = time.Second, 50*time.Millisecond
	return c
}

// A load that comes and goes has workers come and go, by every policy: none serves before it has had
// time to start, nothing is lost when one goes, and all together run for less than if they always
// did.
func TestAutoscale(t *testing.T) {
	for _, policy := range simulate.ScalePolicies() {
		t.Run(policy, func(t *testing.T) {
			c := scaled(policy, 4)
			cluster, r := runOf(t, c, 100, 2*time.Minute, "--prompt-tokens=uniform:200-600", "--output-tokens=uniform:10-60", "--seed=4",
				"--surge=0s+15s=0.1", "--surge=55s+65s=0.05")
			n := outcomes(r)
			if lost := len(r.Records) - n["completed"] - n["rejected"]; lost > 0 || n["completed"] < len(r.Records)/2 {
				t.Error(n)
			}
			sizes, most := map[string]int{"p": 1, "d": 1}, 0
			var grown time.Duration // when the first one more was wanted
			for _, change := range cluster.Resizes() {
				if change.To < 1 || change.To > 4 {
					t.Errorf("%+v is outside the bounds", change)
				}
				if grown == 0 && change.To > 1 {
					grown = change.At
				}
				sizes[change.Pool] = change.To
				most = max(most, sizes["p"]+sizes["d"])
			}
			if most < 4 || sizes["p"]+sizes["d"] >= most {
				t.Errorf("%d workers at most, %v in the end: %v", most, sizes, cluster.Resizes())
			}
			for worker, n := range served(r, 0, grown+startTime-time.Second) {
				if worker != "" && worker != "d-1" && worker != "p-1" {
					t.Errorf("%s served %d requests before it had started", worker, n)
				}
			}
			used := cluster.WorkerTime()
			if all := used["p"] + used["d"]; all >= 8*2*time.Minute*3/4 || all < 2*2*time.Minute {
				t.Errorf("workers ran for %v", used)
			}
		})
	}
}

// Workers that run all the time count from the start of the load to its end.
func TestWorkerTime(t *testing.T) {
	c := config(1, 2)
	for _, w := range c.Workers {
		w.Pool = "all"
	}
	c.Events = []simulate.Event{{At: 5 * time.Second, Do: simulate.Kill{Worker: "d-2"}}}
	cluster, r := runOf(t, c, 5, 20*time.Second, "--prompt-tokens=100", "--output-tokens=5")
	if used, want := cluster.WorkerTime()["all"], 2*r.Drained+5*time.Second; used < want-time.Second || used > want+time.Second {
		t.Errorf("workers ran for %v, want %v", used, want)
	}
}

// Two scalers that see the same do the same.
func TestAutoscaleRepeats(t *testing.T) {
	once := func() []simulate.Resize {
		cluster, _ := runOf(t, scaled(simulate.ScaleDesired, 3), 60, 40*time.Second, "--prompt-tokens=300", "--output-tokens=30", "--seed=4")
		return cluster.Resizes()
	}
	first, second := once(), once()
	if len(first) == 0 || len(first) != len(second) {
		t.Fatalf("%v and %v", first, second)
	}
	for i := range first {
		if first[i] != second[i] {
			t.Errorf("%v and %v", first[i], second[i])
		}
	}
}

// Events meet a worker that the autoscaler is starting: it has one process whatever starts it, and
// none if it is killed meanwhile.
func TestEventsWhileStarting(t *testing.T) {
	const second = time.Second
	for _, test := range []struct {
		name string
		do   simulate.Action // at 5 s; the autoscaler wants d-2 at 2 s, to serve at 9 s
		// without and with are times in which d-2 serves nothing, and something.
		without, with [2]time.Duration
	}{
		{"start", simulate.Start{Worker: "d-2"}, [2]time.Duration{0, 4 * second}, [2]time.Duration{6 * second, 9 * second}},
		{"scale", simulate.Scale{Pool: "d", To: 2}, [2]time.Duration{0, 4 * second}, [2]time.Duration{6 * second, 9 * second}},
		{"kill", simulate.Kill{Worker: "d-2"}, [2]time.Duration{0, 12 * second}, [2]time.Duration{14 * second, 20 * second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := scaled(simulate.ScaleDesired, 2)
			c.Mode = disaggregated
			c.Autoscale.Bounds.Decode.Min = 2
			c.Events = []simulate.Event{{At: 5 * second, Do: test.do}}
			cluster, r := runOf(t, c, 20, 20*second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-100", "--seed=4")
			if n := outcomes(r); n["completed"] != len(r.Records) {
				t.Error(n)
			}
			for worker, n := range simulate.Processes(cluster) {
				if n != 1 {
					t.Errorf("%s has %d processes", worker, n)
				}
			}
			if n := served(r, test.without[0], test.without[1]); n["d-2"] > 0 {
				t.Errorf("from %v to %v, d-2 should serve nothing: %v", test.without[0], test.without[1], n)
			}
			if n := served(r, test.with[0], test.with[1]); n["d-2"] == 0 {
				t.Errorf("from %v to %v, d-2 should serve: %v", test.with[0], test.with[1], n)
			}
		})
	}
}

// No autoscaler takes a drain back: a worker that drains ends, and one starts in its place.
func TestAutoscaleKeepsDrains(t *testing.T) {
	const second = time.Second
	c := scaled(simulate.ScaleDesired, 2)
	c.Mode = disaggregated
	c.Autoscale.Bounds.Decode.Min = 2 // so that d-2 starts at 2 s, and serves at 9 s
	c.Events = []simulate.Event{{At: 15 * second, Do: simulate.Drain{Worker: "d-2"}}}
	_, r := runOf(t, c, 20, 35*second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-100", "--seed=4")
	if n := outcomes(r); n["completed"] != len(r.Records) {
		t.Error(n)
	}
	for _, span := range []struct {
		from, to time.Duration
		serves   bool
	}{{10 * second, 14 * second, true}, {16 * second, 22 * second, false}, {29 * second, 35 * second, true}} {
		if n := served(r, span.from, span.to); (n["d-2"] > 0) != span.serves {
			t.Errorf("from %v to %v: %v; d-2 serves: want %v", span.from, span.to, n, span.serves)
		}
	}
}

// A worker that cannot start is one error, however often the autoscaler wants it, and is paid for no
// longer than its starts take.
func TestStartFails(t *testing.T) {
	for _, startTime := range []time.Duration{0, time.Second} {
		c := scaled(simulate.ScaleDesired, 2)
		c.Autoscale.Bounds.Decode.Min, c.Autoscale.Every, c.Autoscale.StartTime = 2, 4*time.Second, startTime
		c.Workers[3].MaxDrafts = 99
		cluster, err := simulate.New(c)
		if err != nil {
			t.Fatal(err)
		}
		const lasts = 20 * time.Second
		r, err := cluster.Run(simulate.Load{Source: source(t, 1, lasts, "--prompt-tokens=100", "--output-tokens=5"), Duration: lasts, RequestTimeout: time.Minute})
		if err == nil || !strings.HasPrefix(err.Error(), "worker d-2: 99 draft tokens a step: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("starts that take %v: error %v", startTime, err)
		}
		if used := cluster.WorkerTime()["d"] - r.Drained; used > lasts/2 {
			t.Errorf("starts that take %v: d-2 ran for %v", startTime, used)
		}
	}
}
