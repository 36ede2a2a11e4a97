package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
)

func workerRecord(id string, role controlv1.Role) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{
		Id: id, Role: role, Epoch: 1, State: controlv1.WorkerState_WORKER_STATE_SERVING, ModelDigest: "m", LayoutDigest: 7,
		Capacity: &controlv1.Capacity{Blocks: 128, BlockTokens: 32, MaxBatchTokens: 128, MaxSequences: 4, MaxWaiting: 1},
		Layout:   &kvtransferv1.Layout{ArithmeticClass: "c", Layers: 2, BlockTokens: 32, SliceBytes: 1024},
	}
}

func routerConfig() routing.Config {
	return routing.Config{
		Models: []routing.Model{{Name: "fable", Digest: "m"}}, VersionWait: 5 * time.Second,
		QueueLimit: 20, MaxQueueWait: 30 * time.Second, TenantMaxRequests: 100, DisaggregateMinTokens: 64,
		NoWorkerGrace: time.Second, WorkerKeep: time.Minute, LoadStale: 3 * time.Second, ReportDoubt: 500 * time.Millisecond, ReportLag: 100 * time.Millisecond,
		TransferBytesPerSecond: 1e9, NearBest: .1, TPOTHorizonTokens: 64, IndexBlocks: 1000,
		PromptSilence: time.Minute, WorkerSilence: 10 * time.Second,
	}
}

// recordRouter records a router whose workers get requests, lose their connections and come
// back, and which draws among equals.
func recordRouter(t *testing.T) (data []byte) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		codecs, err := replay.NewCodecs()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "log")
		log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Build: "test", Limit: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(3, 4))
		core, recorder := routerlog.NewRouting(log, routerConfig(), rand.New(rand.NewPCG(1, 2)))
		var running []string
		loop := coreloop.New(core, func(_ time.Time, actions []routing.Action) {
			for _, action := range actions {
				if d, is := action.(routing.Dispatch); is {
					running = append(running, d.ID)
				}
			}
		})
		loop.Now, loop.Recorder = log.Now, recorder
		records := []*controlv1.WorkerRecord{
			workerRecord("p1", controlv1.Role_ROLE_PREFILL), workerRecord("p2", controlv1.Role_ROLE_PREFILL),
			workerRecord("d1", controlv1.Role_ROLE_DECODE), workerRecord("d2", controlv1.Role_ROLE_DECODE),
		}
		connect := func(r *controlv1.WorkerRecord, number uint64) {
			loop.Handle(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}, Connection: number})
		}
		loop.Handle(routing.ViewChanged{Workers: records, Live: true})
		for _, r := range records {
			connect(r, 1)
		}
		done := make(chan struct{})
		var ticking sync.WaitGroup
		ticking.Go(func() { loop.Run(done, func() { loop.Handle(routing.Tick{}) }) })
		for i := range 1000 {
			if i == 500 {
				loop.Handle(routing.PolicyChanged{Policy: &controlv1.Policy{Routing: proto.String("disaggregated")}})
				loop.Handle(routing.Hedge{Request: routing.Request{ID: "hedged attempt", Attempt: 2, Tenant: "t", Model: "fable", Tokens: 3, MaxNew: 32, Arrived: time.Now(), Deadline: time.Now().Add(time.Minute)}})
			}
			<-time.After(time.Duration(random.IntN(20e6))) // up to 20 ms
			switch n := random.IntN(100); {
			case n < 50:
				arrived := time.Now().Add(-time.Duration(random.IntN(1000)))
				hash := func(routing.BlockKey) []kvcache.Hash { return []kvcache.Hash{kvcache.Hash(i % 7), 2} }
				loop.Handle(routing.Arrived{Request: routing.Request{
					ID: fmt.Sprint("r", i), Tenant: "t", Model: "fable", Mode: inferencev1.Mode_MODE_AUTO, Arrived: arrived,
					Deadline: arrived.Add(time.Minute), Tokens: 1 + random.IntN(500), MaxNew: 32, Hash: hash,
				}})
			case n < 98:
				loop.Lock()
				var id string
				if len(running) > 0 {
					at := random.IntN(len(running))
					id = running[at]
					running = slices.Delete(running, at, at+1)
				}
				loop.Unlock()
				loop.Handle(routing.Ended{ID: id, Served: true})
			case n >= 98:
				r := records[random.IntN(len(records))]
				loop.Handle(routing.Disconnected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}})
				connect(r, uint64(i))
			}
		}
		close(done)
		ticking.Wait()
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if data, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	})
	return data
}

func TestRun(t *testing.T) {
	data := recordRouter(t)
	result, err := replay.Run(t.Context(), bytes.NewReader(data))
	if err != nil || result.Difference != nil || result.Incomplete != "" || result.Build != "test" || result.Cores[eventlog.KindRouting] != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	if result.Events < 1000 || result.Actions < 300 {
		t.Errorf("only %d events and %d actions", result.Events, result.Actions)
	}
	// A core that is another one: it does not see the decode workers.
	result, err = replay.RunWithout(5)(t.Context(), bytes.NewReader(data))
	if err != nil || result.Difference == nil {
		t.Fatalf("a core without an event does the same: %+v, %v", result, err)
	}
	d := result.Difference
	if d.Core != "routing 1" || d.Number <= 5 || len(d.Event) == 0 || slices.Equal(d.Expected, d.Got) || !strings.HasPrefix(d.Event[0], "routing.") {
		t.Errorf("the difference is %+v", d)
	}
}

// cancelling is a log during whose reading a context ends.
type cancelling struct {
	*bytes.Reader
	cancel context.CancelFunc
}

func (c cancelling) Read(b []byte) (int, error) {
	if c.Size()-int64(c.Len()) > 100 {
		c.cancel()
	}
	return c.Reader.Read(b[:min(len(b), 100)])
}

func TestInterrupted(t *testing.T) {
	data := recordRouter(t)
	for name, read := range map[string]func(context.Context, io.ReadSeeker) error{
		"run": func(ctx context.Context, in io.ReadSeeker) error {
			_, err := replay.Run(ctx, in)
			return err
		},
		"what if": func(ctx context.Context, in io.ReadSeeker) error {
			_, err := replay.WhatIf(ctx, in, func(c routing.Config) (routing.Config, error) { return c, nil })
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := read(ctx, cancelling{bytes.NewReader(data), cancel}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestWhatIf(t *testing.T) {
	data := recordRouter(t)
	for _, test := range []struct {
		name   string
		change func(*routing.Config)
		check  func(replay.Comparison) bool
	}{
		{"nothing", func(*routing.Config) {}, func(o replay.Comparison) bool { return o.Same+o.Undecided == o.Requests && o.Was == o.Would }},
		{"a short queue", func(c *routing.Config) { c.QueueLimit = 1 }, func(o replay.Comparison) bool {
			return o.Refused > 10 && o.Reasons["QUEUE_FULL"] == o.Refused && o.Would.MeanMS < o.Was.MeanMS
		}},
		{"a long queue", func(c *routing.Config) { c.QueueLimit = 1000 }, func(o replay.Comparison) bool { return o.Sent > 0 && o.Refused == 0 }},
		{"a policy, whatever operators set", func(c *routing.Config) { c.Policy = "aggregated" }, func(o replay.Comparison) bool {
			return o.OtherMode > 300 && !slices.ContainsFunc(o.Different, func(d replay.Different) bool { return d.Would.Mode == "disaggregated" })
		}},
		{"no disaggregation", func(c *routing.Config) { c.DisaggregateMinTokens = 1000 }, func(o replay.Comparison) bool { return o.OtherMode > 10 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, err := replay.WhatIf(t.Context(), bytes.NewReader(data), func(c routing.Config) (routing.Config, error) {
				test.change(&c)
				return c, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := o.OtherWorkers + o.OtherMode + o.Refused + o.Sent; len(o.Different)+o.NotListed != n || len(o.Different) < min(n, 1000) {
				t.Errorf("%d of %d that differ are listed, and %d not", len(o.Different), n, o.NotListed)
			}
			for _, d := range o.Different {
				if d.ID == "" || d.Was == d.Would || (d.Was.Decode == "") != (d.Was.Refused != "") || (d.Would.Decode == "") != (d.Would.Refused != "") {
					t.Errorf("%+v differs", d)
				}
			}
			if sum := o.Same + o.OtherWorkers + o.OtherMode + o.Refused + o.Sent + o.Undecided; sum != o.Requests || o.Requests < 300 || o.Hedges != 1 || !test.check(o) {
				t.Errorf("%+v", o)
			}
		})
	}
}
