package mesh_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// gpuOptions are a mesh on an emulated GPU, with room for 16 MiB of weights and little
// else.
func gpuOptions(t *testing.T, gpu *cudatest.GPU) mesh.UpOptions {
	t.Helper()
	o := upOptions(t)
	o.Engine.Name, o.Engine.Device, o.Engine.CUDADriver = mesh.EngineAuto, "cuda:0", gpu.Driver
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
		{"no driver", "no CUDA driver", func(o *mesh.UpOptions) { o.Engine.CUDADriver = "/nowhere/libcuda.so.1" }},
		{"a driver that is not there", "--cuda-driver", func(o *mesh.UpOptions) {
			o.Engine.Device, o.Engine.CUDADriver = mesh.DeviceAuto, "/nowhere/libcuda.so.1"
		}},
		{"long batches", "--max-batch-tokens", func(o *mesh.UpOptions) { o.Engine.MaxBatchTokens = 70000 }},
		{"all that is free", "--gpu-memory", func(o *mesh.UpOptions) { o.Engine.GPUMemory = 255 << 20 }},
		{"no such GPU", "there is no GPU 3 that can be used: use cuda:0 (", func(o *mesh.UpOptions) { o.Engine.Device = "cuda:3" }},
		{"no room for the weights", "use a smaller model", func(o *mesh.UpOptions) { o.Engine.GPUMemory = 20 << 20 }},
		{"no room for a full context", "--kv-memory", func(o *mesh.UpOptions) { o.Engine.KVMemory = 1 << 18 }},
		{"no cuBLASLt", "--cuda-products cublaslt: no cuBLASLt", func(o *mesh.UpOptions) {
			o.Engine.CUDAProducts, o.Engine.CublasLt = cuda.CublasLt, "/nowhere/libcublasLt.so.12"
		}},
		{"more than there is", "--gpu-memory", func(o *mesh.UpOptions) { o.Engine.GPUMemory = 1 << 40 }},
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
	o.Engine.Name = mesh.EngineAuto
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
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
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.Engine.CUDAProducts, o.Engine.CublasLt = cuda.CublasLt, gpu.CublasLt
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

// A GPU that is lost fails what runs with a typed error, and ends the process with one:
// whoever restarts it gets a new context. Before that it serves, and takes all memory that
// it was given.
func TestLostGPU(t *testing.T) {
	gpu := cudatest.New(t)
	o := gpuOptions(t, gpu)
	o.StopTimeout = 5 * time.Second
	ready, ended := make(chan mesh.Up, 1), make(chan error, 1)
	go func() {
		ended <- mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) { ready <- up })
	}()
	var up mesh.Up
	select {
	case up = <-ready:
	case err := <-ended:
		t.Fatalf("it did not start: %v", err)
	}
	ask := func() error { return answered(t, up.Address, "Once upon a time") }
	if err := ask(); err == nil || err.Error() != "EOF" {
		t.Errorf("a request on a GPU: %v", err)
	}
	gpu.Lose()
	if err := ask(); err == nil || err.Error() == "EOF" {
		t.Error("a request on a lost GPU succeeded")
	}
	select {
	case err := <-ended:
		if !errors.Is(err, engine.ErrDeviceLost) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on without its GPU")
	}
	if gpu.InUse() {
		t.Error("something of the GPU was left open")
	}
}
