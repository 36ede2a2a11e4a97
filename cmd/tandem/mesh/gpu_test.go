package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// gpuOptions are a mesh on an emulated GPU, with room for 16 MiB of weights and little
// else.
func gpuOptions(t *testing.T, gpu *cudatest.GPU) mesh.UpOptions {
	t.Helper()
	o := upOptions(t)
	o.Engine.Name, o.Engine.Device, o.Engine.CUDA.Driver = engines.Auto, "cuda:0", gpu.Driver
	o.ContextTokens, o.Engine.MaxBatchTokens, o.Engine.MaxSequences = 256, 128, 4
	return o
}

// Who names a GPU gets it or one line that says why not, and nothing is loaded.
func TestNoGPU(t *testing.T) {
	gpu := cudatest.New(t)
	for _, c := range []struct {
		name, want string
		change     func(*mesh.UpOptions)
	}{
		{"no driver", "no CUDA driver", func(o *mesh.UpOptions) { o.Engine.CUDA.Driver = "/nowhere/libcuda.so.1" }},
		{"a driver that is not there", "--cuda-driver", func(o *mesh.UpOptions) {
			o.Engine.Device, o.Engine.CUDA.Driver = engines.DeviceAuto, "/nowhere/libcuda.so.1"
		}},
		{"long batches", "--max-batch-tokens", func(o *mesh.UpOptions) { o.Engine.MaxBatchTokens = 70000 }},
		{"all that is free", "--gpu-memory", func(o *mesh.UpOptions) { o.Engine.CUDA.Memory = 255 << 20 }},
		{"no such GPU", "GPU 3 cannot be used: use cuda:0 (", func(o *mesh.UpOptions) { o.Engine.Device = "cuda:3" }},
		{"no room for the weights", "use a smaller model", func(o *mesh.UpOptions) { o.Engine.CUDA.Memory = 20 << 20 }},
		{"no room for a full context", "--kv-memory", func(o *mesh.UpOptions) { o.Engine.KVMemory = 1 << 18 }},
		{"no cuBLASLt", "--cuda-products cublaslt: no cuBLASLt", func(o *mesh.UpOptions) {
			o.Engine.CUDA.Products, o.Engine.CUDA.CublasLt = cuda.CublasLt, "/nowhere/libcublasLt.so.12"
		}},
		{"copies that crawl", "--gpu-copy-rate", func(o *mesh.UpOptions) { o.Engine.CUDA.CopyRate = 1000 }},
		{"copies of no GPU", "--gpu-copy-rate: needs a GPU", func(o *mesh.UpOptions) {
			o.Engine.Device, o.Engine.CUDA.CopyRate = engines.DeviceCPU, cuda.LeastCopyRate
		}},
		{"more than there is", "--gpu-memory", func(o *mesh.UpOptions) { o.Engine.CUDA.Memory = 1 << 40 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := gpuOptions(t, gpu)
			c.change(&o)
			err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}

// Without flags of GPUs something computes, whatever the machine has.
func TestAuto(t *testing.T) {
	o := upOptions(t)
	o.Engine.Name = engines.Auto
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready := false
	err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) { ready = up.OutsideBytes > 0 && up.Device != ""; stop() })
	if err != nil || !ready {
		t.Errorf("error %v, ready with an engine: %v", err, ready)
	}
}

// answered asks for three tokens. io.EOF: they came.
func answered(t *testing.T, address, prompt string) error {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx := t.Context()
	most := uint32(3)
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{
		Input: &inferencev1.GenerateRequest_Prompt{Prompt: prompt}, MaxTokens: &most,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// With cuBLASLt a prefill and a decode worker pass KV to each other, in a class of their
// own, and leave nothing of it open.
func TestCublasLt(t *testing.T) {
	longtest.Only(t)
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.Engine.CUDA.Products, o.Engine.CUDA.CublasLt = cuda.CublasLt, gpu.CublasLt
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asked error
	err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		asked = answered(t, up.Address, strings.Repeat("Once upon a time there was a fox. ", 10))
		stop()
	})
	if err != nil || !errors.Is(asked, io.EOF) {
		t.Errorf("error %v, a request's %v", err, asked)
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}

// With weights and KV in fewer bits a prefill and a decode worker pass KV to each other,
// and the mesh says what it computes with.
func TestFewerBits(t *testing.T) {
	longtest.Only(t)
	weights, kv := cuda.WeightTypes(), cuda.KVTypes()
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.Engine.CUDA.Weights, o.Engine.CUDA.KV = weights[len(weights)-1], kv[len(kv)-1]
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asked error
	device := ""
	err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		asked, device = answered(t, up.Address, strings.Repeat("Once upon a time there was a fox. ", 10)), up.Device
		stop()
	})
	if err != nil || !errors.Is(asked, io.EOF) {
		t.Errorf("error %v, a request's %v", err, asked)
	}
	if want := fmt.Sprintf(", weights in %s, KV in %s", o.Engine.CUDA.Weights, o.Engine.CUDA.KV); !strings.HasSuffix(device, want) {
		t.Errorf("it computes on %q, want %q at the end", device, want)
	}
}

// A GPU that is lost fails what runs with a typed error, and ends the process with one:
// whoever restarts it gets a new context. Before that it serves, and takes all memory that
// it was given.
func TestLostGPU(t *testing.T) {
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.StopTimeout = 5 * time.Second
	up, ended := startMesh(t.Context(), t, o, quiet, prometheus.NewRegistry())
	ask := func() error { return answered(t, up.Address, "Once upon a time") }
	if err := ask(); err == nil || err.Error() != "EOF" {
		t.Errorf("a request on a GPU: %v", err)
	}
	gpu.Lose()
	if err := ask(); err == nil || err.Error() == "EOF" {
		t.Error("a request on a lost GPU succeeded")
	}
	if err := <-ended; !errors.Is(err, engine.ErrDeviceLost) {
		t.Errorf("it ended with %v", err)
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}

// told is what a disaggregated request was answered with.
type told struct {
	tokens          []uint32
	route           *inferencev1.Route
	in, out, within int64 // bytes copied for it, between the host and the GPU and within it
}

// disaggregated lets a mesh on the GPU serve one request, whose tokens are drawn greedily.
func disaggregated(t *testing.T, gpu *cudatest.GPU, o mesh.UpOptions) (result told) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer stop()
		conn, err := rpc.Dial(up.Address, rpc.ClientConfig{})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		in, out, within := gpu.Copied()
		stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{
			Input:     &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("Once upon a time there was a fox. ", 10)},
			MaxTokens: new(uint32(6)), Mode: inferencev1.Mode_MODE_DISAGGREGATED,
			Sampling: &inferencev1.Sampling{Temperature: new(float32(0))},
		})
		for err == nil {
			var m *inferencev1.GenerateEvent
			if m, err = stream.Recv(); err == nil {
				result.tokens = append(result.tokens, m.GetTokens().GetTokenIds()...)
				if m.GetFinished() != nil {
					result.route = m.GetFinished().GetRoute()
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("the request ended with %v", err)
		}
		result.in, result.out, result.within = gpu.Copied()
		result.in, result.out, result.within = result.in-in, result.out-out, result.within-within
	})
	if err != nil {
		t.Fatal(err)
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
	return result
}

// Between two workers of one GPU no KV goes by the host, and the tokens are those that they
// are with KV that does.
func TestKVStaysOnTheGPU(t *testing.T) {
	longtest.Only(t)
	gpu := cudatest.New(t)
	within := disaggregated(t, gpu, gpuOptions(t, gpu))
	o := gpuOptions(t, gpu)
	o.KV.Transport = kvtransfer.TransportUnix
	outside := disaggregated(t, gpu, o)
	if len(within.tokens) != 6 || !slices.Equal(within.tokens, outside.tokens) {
		t.Errorf("tokens %v, and %v where KV goes by the host", within.tokens, outside.tokens)
	}
	if got := within.route.GetTransport(); got != "device" || !within.route.GetReproducible() {
		t.Errorf("route %v", within.route)
	}
	if got := outside.route.GetTransport(); got != "unix" {
		t.Errorf("KV went over %q", got)
	}
	// What else is copied is what goes into steps and comes out of them.
	if kv := within.within; kv <= 0 || outside.within != 0 || outside.in-within.in < kv*9/10 || outside.out-within.out < kv*9/10 {
		t.Errorf("copied %+v, and %+v where KV goes by the host", within, outside)
	}
}

// A rate that copies are held to is of a GPU, and is taken.
func TestCopyRate(t *testing.T) {
	longtest.Only(t)
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.KV.Transport, o.Engine.CUDA.CopyRate = kvtransfer.TransportUnix, cuda.LeastCopyRate
	if got := disaggregated(t, gpu, o); len(got.tokens) != 6 {
		t.Errorf("tokens %v", got.tokens)
	}
}
