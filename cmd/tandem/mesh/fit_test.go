package mesh_test

import (
	"context"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Auto is 1 GiB for a model whose full context takes less.
func TestAutoKVMemory(t *testing.T) {
	if left, known := memory.Available(os.DirFS("/")); known && left.Bytes < 6<<30 {
		t.Skipf("%d MiB are available: it stands for less", left.Bytes>>20)
	}
	for _, kind := range []cpu.WeightType{cpu.BF16, cpu.Int8, cpu.Int4} {
		t.Run(string(kind), func(t *testing.T) { autoKVMemory(t, kind, cpu.KVBF16, 65536) })
	}
	// A byte an element, and two for each of the heads of 64.
	t.Run("int8-kv", func(t *testing.T) { autoKVMemory(t, cpu.BF16, cpu.KVInt8, 65536*(64+2)/128) })
}

func autoKVMemory(t *testing.T, kind cpu.WeightType, kv cpu.KVType, block int) {
	o := upOptions(t)
	o.Engine.Name, o.Engine.KVMemory, o.Engine.CPU.Weights, o.Engine.CPU.KV = engines.CPU, bytesize.Auto, kind, kv
	ctx, stop := context.WithCancel(t.Context())
	up, ended := startMesh(ctx, t, o, quiet, prometheus.NewRegistry())
	spec, err := model.LoadSpec(up.ModelDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	workspace := cpu.WorkspaceBytes(spec, cpu.Config{Weights: kind, BlockTokens: o.Engine.BlockTokens, MaxBatchTokens: o.Engine.MaxBatchTokens, MaxSequences: o.Engine.MaxSequences})
	weights := cpu.WeightBytes(spec, kind)
	if rest := up.OutsideBytes - 2*(1<<30+workspace); workspace == 0 || rest < weights || rest > 2*weights {
		t.Errorf("%d bytes outside Go's heap, of which %d a workspace and about %d the weights", up.OutsideBytes, workspace, weights)
	}
	conn, err := rpc.Dial(up.Control, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	view, err := controlv1.NewControlClient(conn).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
	for _, w := range view.GetWorkers() {
		if got := w.GetRecord().GetCapacity().GetBlocks(); int(got) != 1<<30/block {
			t.Errorf("%s has %d blocks of %d bytes", w.GetRecord().GetId(), got, block)
		}
		if got := w.GetRecord().GetLayout().GetArithmeticClass(); got != kind.ArithmeticClass(kv) {
			t.Errorf("%s computes %q", w.GetRecord().GetId(), got)
		}
	}
	if err != nil || len(view.GetWorkers()) != 2 || conn.Close() != nil {
		t.Errorf("workers %v, %v", view.GetWorkers(), err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// More threads than processors are said to be too many, for the engine that has threads.
func TestTooManyThreads(t *testing.T) {
	for _, c := range []struct {
		engine  string
		threads int
		want    string
	}{
		{engines.CPU, 0, ""},
		{engines.CPU, 2, ""},
		{engines.CPU, 1000, "--threads 1000 is more than the 2 processors that this process may use: pass 2 or less"},
		{engines.Simulated, 1000, ""},
	} {
		e := engines.Config{Name: c.engine}
		e.CPU.Threads = c.threads
		if got := mesh.TooManyThreads(e, 2); got != c.want {
			t.Errorf("%s with %d threads: %q, want %q", c.engine, c.threads, got, c.want)
		}
	}
}
