package workerdriver_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// Prompts that end before the scheduler has them are counted, too.
func TestEndsOfPromptsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := workerdriver.NewMetrics(registry, "w1")
	if err != nil {
		t.Fatal(err)
	}
	const maxWaiting = 5
	d, err := workerdriver.NewDriver(workerdriver.Config{Engine: newEngine(t, latency.Model{}), Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: maxWaiting}, Logger: slog.New(slog.DiscardHandler), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	var ids []scheduler.SequenceID
	begin := func(fetch bool) {
		r := scheduler.Request{ID: d.Reserve(), Kind: scheduler.PrefillOnly, Tokens: prompt(4), MaxTokens: 2}
		ids = append(ids, r.ID)
		d.Prefill(worker.Prefill{Request: r, Fetch: fetch})
	}
	check := func(when, want string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := make(map[string]float64)
		for _, f := range families {
			if f.GetName() != "tandem_worker_sequences_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, label := range m.GetLabel() {
					if label.GetName() == "end" {
						counted[label.GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
		}
		if got := fmt.Sprint(counted); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	for range maxWaiting {
		begin(true) // their transfers do not open
	}
	begin(false)
	check("one more than may wait", "map[refused:1]")
	cancel := func(id scheduler.SequenceID) {
		d.Handle(id, worker.Cancel{ID: id, Err: status.Error(codes.Canceled, "the client went away")})
	}
	sent := func(id scheduler.SequenceID) {
		d.Handle(id, worker.Sent{ID: id, Err: status.Error(codes.Unavailable, "lost")})
	}
	d.Handle(ids[0], worker.NotOpened{ID: ids[0], Err: status.Error(codes.Unavailable, "lost")})
	check("no transfer", "map[failed:1 refused:1]")
	cancel(ids[1])
	check("cancelled", "map[cancelled:1 failed:1 refused:1]")
	d.Handle(ids[1], worker.NotOpened{ID: ids[1], Err: status.Error(codes.Unavailable, "lost")})
	for _, id := range ids[2:4] {
		d.Handle(id, worker.Opened{ID: id})
	}
	cancel(ids[2])
	sent(ids[2])
	sent(ids[3])
	cancel(ids[3])
	for _, id := range ids[2:4] {
		d.Handle(id, worker.Fetched{ID: id})
	}
	check("lost while a store is asked", "map[cancelled:3 failed:1 refused:1]")
	d.Drain()
	begin(false)
	check("draining", "map[cancelled:3 failed:1 refused:2]")
	if left := d.Remaining(); left != 1 {
		t.Errorf("%d sequences are left, and 1 waits for its transfer", left)
	}
}
