package workerdriver_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// hopeful starts a decode worker that expects hardly anything to be generated, so
// that its 40 blocks of 4 tokens run out. Each step takes 10 ms. The test must be a
// bubble.
func hopeful(t *testing.T) (*workerdriver.Driver, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	cfg := memberConfig(controlv1.Role_ROLE_DECODE, newEngine(t, latency.Model{BaseMs: 10}))
	cfg.Registerer, cfg.OutputShare = registry, 0.001
	m, err := workerdriver.NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return m.Driver(), registry
}

// receive submits a sequence whose KV is there at once.
func receive(d *workerdriver.Driver, prompt []int32, maxTokens int) *workerdriver.Sequence {
	id := d.Reserve()
	s := d.Submit(scheduler.Request{ID: id, Kind: scheduler.Receive, Tokens: prompt, MaxTokens: maxTokens})
	d.KVArrived(scheduler.KVArrived{ID: id, Sampled: []int32{7}})
	return s
}

// told follows a sequence to its end: what it gave, and when each first.
func told(t *testing.T, s *workerdriver.Sequence) (names []string, at map[string]time.Time) {
	t.Helper()
	at = make(map[string]time.Time)
	for {
		select {
		case <-s.Ready():
		case <-time.After(time.Hour):
			t.Fatalf("the sequence hangs after %v", names)
		}
		for _, action := range s.Take() {
			name := "sampled"
			switch action.(type) {
			case scheduler.Reserved:
				name = "reserved"
			case scheduler.Started:
				name = "started"
			case scheduler.Preempted:
				name = "preempted"
			case scheduler.Resumed:
				name = "resumed"
			case scheduler.Finished, scheduler.Refused:
				return append(names, "ended"), at
			}
			names = append(names, name)
			if _, known := at[name]; !known {
				at[name] = time.Now()
			}
		}
	}
}

// A sequence that keeps its blocks and waits for one more gives Preempted, once, and
// goes on with the next token.
func TestWaitForABlockIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hopeful(t)
		first := receive(d, prompt(77), 4) // 20 blocks to the end
		second := receive(d, append([]int32{9}, prompt(78)...), 5)
		got, _ := told(t, second)
		want := []string{"reserved", "started", "sampled", "preempted", "sampled", "sampled", "sampled", "ended"}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got, _ := told(t, first); slices.Contains(got, "preempted") {
			t.Errorf("the first one: %v", got)
		}
	})
}

// What a sequence waited that gave its blocks away before it ran is counted as that
// of others.
func TestWaitBeforeTheFirstRunIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, registry := hopeful(t)
		var before []*workerdriver.Sequence
		for i := range 8 { // as many as run at a time; 5 blocks each in the end
			s := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: []int32{int32(i), 5, 6}, MaxTokens: 17})
			before = append(before, s)
			if i == 0 {
				time.Sleep(5 * time.Millisecond) // those that follow come amid a step, not with the end of one
			}
			time.Sleep(10 * time.Millisecond) // one step
		}
		last := receive(d, prompt(60), 4)
		got, at := told(t, last)
		want := []string{"reserved", "preempted", "started", "sampled", "sampled", "sampled", "ended"}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		for _, s := range before {
			told(t, s)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := make(map[string]float64)
		for _, f := range families {
			counted[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
		}
		waited := at["started"].Sub(at["preempted"])
		if waited <= 0 || counted["tandem_worker_preempted_seconds_total"] != waited.Seconds() || counted["tandem_worker_preemptions_total"] != 1 {
			t.Errorf("waited %v, counted %v s of %v preemptions", waited,
				counted["tandem_worker_preempted_seconds_total"], counted["tandem_worker_preemptions_total"])
		}
	})
}
