package cuda_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestMeter(t *testing.T) {
	for _, kind := range cuda.WeightTypes() {
		t.Run(string(kind), func(t *testing.T) { testMeter(t, loadAs(t, filepath.Join(familiesDir, "llama"), kind)) })
	}
}

func testMeter(t *testing.T, w *cuda.Weights) {
	by := cublaslt(t, cuda.Config{})
	m, err := w.NewMeter(cuda.MeterConfig{Bytes: 1, Products: by.Products, CublasLt: by.CublasLt})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err == nil {
		t.Error("the weights are closed under the meter")
	}
	for range 2 {
		l, err := m.Measure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]float64{
			"copy": l.CopyBytes, "read": l.ReadBytes, "product": l.ProductFLOPs, "product by cuBLASLt": l.CublasLtFLOPs, "to the device": l.HostToDeviceBytes,
			"to the host": l.DeviceToHostBytes, "empty kernel": float64(l.GraphKernel),
		} {
			if !(x > 0) || math.IsInf(x, 1) {
				t.Errorf("%s: %v", name, x)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Measure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestMeterLeaksNothing, whatever call fails while it is made.
func TestMeterLeaksNothing(t *testing.T) {
	path, control := emulated(t)
	m, err := model.Open(filepath.Join(familiesDir, "llama"), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cuda.Load(t.Context(), m, cuda.Config{Driver: path})
	if err := errors.Join(err, m.Close()); err != nil {
		t.Fatal(err)
	}
	before := control.Live()
	for _, call := range []string{"cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuEventCreate", "cuMemcpyDtoDAsync_v2", "cuGraphInstantiateWithFlags", "cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic"} {
		control.Fail(call, 0, outOfMemory)
		if meter, err := w.NewMeter(cuda.MeterConfig{Bytes: 1, Products: cuda.CublasLt, CublasLt: path}); err == nil {
			t.Errorf("%s fails, and there is a meter: %v", call, meter.Close())
		}
		control.Reset()
		if now := control.Live(); now != before {
			t.Errorf("failure of %s leaves %+v, before it %+v", call, now, before)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
