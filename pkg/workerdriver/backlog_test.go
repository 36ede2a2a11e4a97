package workerdriver_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// The backlog is what is left to compute of prompts: those that wait and the rest
// of those that run. What has been computed, and decoding, is not in it.
func TestBacklogTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		cfg := memberConfig(controlv1.Role_ROLE_PREFILL, newEngine(t, latency.Model{BaseMs: 10}))
		cfg.Registerer = registry
		m, err := workerdriver.NewMember(cfg)
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		go func() { defer close(stop); m.Driver().Run(t.Context()) }()
		t.Cleanup(func() { <-stop })
		backlog := func(when string, want float64) {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				if family.GetName() != "tandem_worker_backlog_tokens" {
					continue
				}
				sample := family.GetMetric()[0]
				if role := sample.GetLabel()[0]; role.GetName() != "role" || role.GetValue() != "prefill" {
					t.Errorf("%s: label %v", when, role)
				}
				if got := sample.GetGauge().GetValue(); got != want {
					t.Errorf("%s: %v tokens, want %v", when, got, want)
				}
				return
			}
			t.Errorf("%s: there is no such metric", when)
		}
		backlog("before anything came", 0)
		// Blocks for one only: 40 of 4 tokens.
		first := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: make([]int32, 100), MaxTokens: 2})
		second := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: ascending(90), MaxTokens: 2})
		synctest.Wait()
		backlog("in the first step", 190)
		time.Sleep(25 * time.Millisecond) // virtual: two steps of 16 tokens are done
		synctest.Wait()
		backlog("in the third step", 190-32)
		var a, b result
		a.read(t, first, false)
		b.read(t, second, false)
		synctest.Wait()
		backlog("at the end", 0)
	})
}

// ascending are tokens that share no prefix with zeros.
func ascending(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i + 1)
	}
	return tokens
}

// The gauge of free blocks has those that sequences are expected to take and have not yet: what
// routers are told does not.
func TestFreeBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, published := prometheus.NewRegistry(), new(recorder)
		cfg := memberConfig(controlv1.Role_ROLE_DECODE, newEngine(t, latency.Model{BaseMs: 10}))
		cfg.Registerer, cfg.Signals = registry, published
		m, err := workerdriver.NewMember(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		// 3 of 40 blocks of 4 tokens, and with all that it may generate 28. It is there before the first
		// report, and so in it.
		m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 101})
		go func() { defer close(ran); _ = m.Run(ctx) }()
		synctest.Wait()
		published.mu.Lock()
		if told := published.reports[len(published.reports)-1]; told.GetBlocksFree() != 12 {
			t.Errorf("routers are told of %d free blocks", told.GetBlocksFree())
		}
		published.mu.Unlock()
		want := `
			# HELP tandem_worker_kv_blocks KV blocks, by state.
			# TYPE tandem_worker_kv_blocks gauge
			tandem_worker_kv_blocks{state="free",worker="w1"} 37
			tandem_worker_kv_blocks{state="quarantined",worker="w1"} 0
			tandem_worker_kv_blocks{state="reserved",worker="w1"} 0
			tandem_worker_kv_blocks{state="total",worker="w1"} 40
		`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tandem_worker_kv_blocks"); err != nil {
			t.Error(err)
		}
		cancel()
		<-ran
	})
}
