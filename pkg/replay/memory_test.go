package replay_test

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// recordRequests writes a log of a router with so many requests, of which few run at a time.
func recordRequests(t *testing.T, path string, requests int) {
	t.Helper()
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Limit: 1 << 40, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	core, recorder := routerlog.NewRouting(log, routerConfig(), first{})
	now := log.Now()
	var running []string
	handle := func(event routing.Event) {
		now = now.Add(100 * time.Microsecond)
		event, _ = recorder.Event(now, event).(routing.Event)
		actions := core.Handle(now, event)
		recorder.Actions(actions)
		for _, action := range actions {
			if d, is := action.(routing.Dispatch); is {
				running = append(running, d.ID)
			}
		}
	}
	workers := []*controlv1.WorkerRecord{workerRecord("p1", controlv1.Role_ROLE_PREFILL), workerRecord("d1", controlv1.Role_ROLE_DECODE), workerRecord("d2", controlv1.Role_ROLE_DECODE)}
	handle(routing.ViewChanged{Workers: workers, Live: true})
	for _, w := range workers {
		handle(routing.Connected{Worker: routing.Ref{ID: w.GetId(), Epoch: 1}, Connection: 1})
	}
	for i := range requests {
		for _, w := range workers {
			handle(routing.LoadReported{Report: &controlv1.LoadReport{
				Origin: &controlv1.Origin{Id: w.GetId(), Epoch: 1, Sequence: uint64(i + 1)}, BlocksFree: 128, BlocksTotal: 128,
			}})
		}
		hashes := make([]kvcache.Hash, 32)
		for n := range hashes {
			hashes[n] = kvcache.Hash(uint64(len(hashes)*i+n) * 0x9e3779b97f4a7c15)
		}
		key := routing.BlockKey{Version: routing.Version{Digest: "m", Class: "c"}, BlockTokens: 32}
		request := routing.Request{
			ID: fmt.Sprintf("%032x#1", i), Tenant: "t", Model: "fable", Mode: inferencev1.Mode_MODE_AUTO, Arrived: now, Deadline: now.Add(time.Minute),
			Tokens: 32 * len(hashes), MaxNew: 32, Hash: func(routing.BlockKey) []kvcache.Hash { return hashes },
		}
		if i%2 == 0 { // else it is asked for them
			request.Hashes = map[routing.BlockKey][]kvcache.Hash{key: hashes}
		}
		handle(routing.Arrived{Request: request})
		if len(running) < 4 {
			continue
		}
		id := running[0]
		running = running[1:]
		handle(routing.Taken{ID: id, Role: controlv1.Role_ROLE_DECODE})
		handle(routing.PromptDone{ID: id})
		for range 20 {
			handle(routing.TokensReceived{ID: id})
		}
		handle(routing.Ended{ID: id, Served: true})
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

// first is a routing.Rand.
type first struct{}

func (first) IntN(int) int { return 0 }

// weighed is a file that, as it is read, takes down how much memory is in use.
type weighed struct {
	*os.File
	unread int // since the last time
	most   uint64
}

func (w *weighed) Read(p []byte) (int, error) {
	n, err := w.File.Read(p)
	if w.unread -= n; w.unread <= 0 {
		w.unread = 1 << 16
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		w.most = max(w.most, m.HeapAlloc)
	}
	return n, err
}

// What a replay keeps does not grow with a log, and what a "what if" keeps little with its requests.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
	const requests, little = 5000, 400
	path := filepath.Join(t.TempDir(), "log")
	recordRequests(t, path, requests)
	for _, test := range []struct {
		name string
		most int
		run  func(in io.ReadSeeker) (n int, err error)
	}{
		{"replay", 2 << 20, func(in io.ReadSeeker) (int, error) {
			r, err := replay.Run(t.Context(), in)
			return int(r.Events), err
		}},
		{"what if", 2<<20 + requests*little, func(in io.ReadSeeker) (int, error) {
			o, err := replay.WhatIf(t.Context(), in, func(c routing.Config) (routing.Config, error) {
				c.Policy = "aggregated"
				return c, nil
			})
			return o.Requests, err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			var before runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			in := &weighed{File: file}
			if n, err := test.run(in); err != nil || n < requests {
				t.Fatalf("%d, %v", n, err)
			}
			if grown := int(in.most) - int(before.HeapAlloc); in.most == 0 || grown > test.most {
				t.Errorf("it takes %d bytes", grown)
			}
		})
	}
}
