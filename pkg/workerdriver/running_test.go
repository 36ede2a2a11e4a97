package workerdriver_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// hanging is an engine whose steps take hang longer while armed.
type hanging struct {
	engine.Engine
	mu   sync.Mutex
	hang time.Duration
}

func (h *hanging) arm(hang time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hang = hang
}

func (h *hanging) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	h.mu.Lock()
	hang := h.hang
	h.mu.Unlock()
	time.Sleep(hang)
	return h.Engine.Step(ctx, batch)
}

// lines is a log that several goroutines write and a test reads.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// A step that hangs is said once, and seen in the metrics while it lasts.
func TestAStepThatHangsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &hanging{Engine: newEngine(t, latency.Model{BaseMs: 5})}
		registry, log := prometheus.NewRegistry(), new(lines)
		cfg := memberConfig(controlv1.Role_ROLE_DECODE, e)
		cfg.Registerer, cfg.Logger = registry, slog.New(slog.NewTextHandler(log, nil))
		m, err := workerdriver.NewMember(cfg)
		if err != nil {
			t.Fatal(err)
		}
		run := make(chan struct{})
		go func() { defer close(run); _ = m.Run(t.Context()) }()
		t.Cleanup(func() { <-run })
		running := func() float64 {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "tandem_worker_step_running_seconds" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			t.Fatal("there is no such metric")
			return 0
		}
		ask := func() *workerdriver.Sequence {
			return m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(20), MaxTokens: 3, Kind: scheduler.Full})
		}
		var r result
		if r.read(t, ask(), false); r.finished == nil || running() != 0 {
			t.Fatalf("%+v, running for %v", r, running())
		}
		e.arm(30 * time.Second)
		ask()
		time.Sleep(20 * time.Second)
		e.arm(0)
		if at := running(); at < 19 || at > 20 {
			t.Errorf("running for %v s after 20", at)
		}
		if n := log.count("running far longer"); n != 1 {
			t.Errorf("said %d times: %s", n, log.text.String())
		}
		time.Sleep(20 * time.Second)
		if running() != 0 || log.count("has ended") != 1 || log.count("running far longer") != 1 {
			t.Errorf("running for %v after its end; log %s", running(), log.text.String())
		}
	})
}
