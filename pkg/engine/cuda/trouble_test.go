package cuda_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Codes of the driver.
const (
	outOfMemory    = 2
	illegalAddress = 700
	eccError       = 214
	unknown        = 999 // which a GPU that fell off the bus gives
)

// open loads weights and makes an engine, and says what went wrong.
func open(t *testing.T, path string, config cuda.Config) (close func() error, e engine.Engine, err error) {
	t.Helper()
	m, err := model.Open(filepath.Join(familiesDir, "llama"), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	w, err := cuda.Load(t.Context(), m, cuda.Config{Driver: path})
	if err != nil {
		return nil, nil, err
	}
	if e, err = w.NewEngine(config); err != nil {
		return nil, nil, errors.Join(err, w.Close())
	}
	return func() error { return errors.Join(e.Close(), w.Close()) }, e, nil
}

func small() cuda.Config {
	return cuda.Config{Blocks: 8, MaxBatchTokens: 64, MaxSequences: 4}
}

// TestNothingLeaks: what is opened is closed, after steps and after every failure of a
// call on the way.
func TestNothingLeaks(t *testing.T) {
	longtest.Only(t)
	path, control := emulated(t)
	free := func(what string) {
		t.Helper()
		if live := control.Live(); live != (emulationtest.Live{}) {
			t.Fatalf("%s leaves %+v", what, live)
		}
	}
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	step(t, e, engine.Sequence{Tokens: []int32{1, 2, 3}, Blocks: table(0, 1), Sample: &engine.Sample{}})
	if err := errors.Join(closeAll(), closeAll()); err != nil {
		t.Error(err)
	}
	free("closing")
	for _, call := range []string{
		"cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuEventCreate", "cuModuleLoadDataEx",
		"cuModuleGetFunction", "cuMemGetInfo_v2", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
		"cuMemcpyHtoDAsync_v2", "cuMemsetD8Async", "cuStreamSynchronize",
	} {
		failed := false
		for after := range 40 {
			control.Fail(call, after, outOfMemory)
			closeAll, _, err := open(t, path, small())
			control.Reset()
			if err == nil { // it is called less often
				if err := closeAll(); err != nil {
					t.Fatal(err)
				}
				free(call + " never failing")
				break
			}
			failed = true
			if !strings.Contains(err.Error(), call) {
				t.Errorf("%s fails: %v does not name it", call, err)
			}
			free("failure of " + call)
		}
		if !failed {
			t.Errorf("%s is never called: the test does not test it", call)
		}
	}
}

// TestNotEnoughMemory: what does not fit is refused before anything is copied, in words.
func TestNotEnoughMemory(t *testing.T) {
	path, control := emulated(t)
	control.Set(emulationtest.Memory, 1<<20)
	if _, _, err := open(t, path, small()); err == nil || !strings.Contains(err.Error(), "smaller model") {
		t.Errorf("weights: %v", err)
	}
	control.Reset()
	config := small()
	config.Blocks = 1 << 20
	if _, _, err := open(t, path, config); err == nil || !strings.Contains(err.Error(), "KV blocks") {
		t.Errorf("pages: %v", err)
	}
}

// TestDeviceLost: after an error that the context does not survive every step fails at
// once and says so, and closing leaves nothing.
func TestDeviceLost(t *testing.T) {
	for name, code := range map[string]int{"illegal address": illegalAddress, "memory error": eccError, "unknown": unknown} {
		t.Run(name, func(t *testing.T) {
			path, control := emulated(t)
			closeAll, e, err := open(t, path, small())
			if err != nil {
				t.Fatal(err)
			}
			s := engine.Sequence{Tokens: []int32{1, 2, 3}, Blocks: table(0, 1), Sample: &engine.Sample{}}
			step(t, e, s)
			control.Lose(code)
			for range 2 {
				if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}}); !errors.Is(err, engine.ErrDeviceLost) {
					t.Errorf("a step on a lost device: %v", err)
				}
			}
			_ = closeAll() // the driver's errors do not matter any more
			control.Reset()
			if closeAll, e, err = open(t, path, small()); err != nil {
				t.Fatalf("the device opened anew: %v", err)
			}
			step(t, e, s)
			if err := closeAll(); err != nil {
				t.Error(err)
			}
			if live := control.Live(); live != (emulationtest.Live{}) {
				t.Errorf("left: %+v", live)
			}
		})
	}
}

// TestLossIsNoticedByPages: a device that is lost while nothing is computed is noticed by
// who copies pages, and by who waits for that.
func TestLossIsNoticedByPages(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeAll() }()
	noticed := e.(engine.LossNotifier).Lost()
	slice := make([]byte, e.Capacity().Layout.SliceBytes)
	if err := e.Pages().Write(0, table(0, 1), slice); err != nil {
		t.Fatal(err)
	}
	select {
	case <-noticed:
		t.Error("a loss is noticed before there is one")
	default:
	}
	control.Lose(illegalAddress)
	if err := e.Pages().Read(0, table(0, 1), slice); !errors.Is(err, engine.ErrDeviceLost) {
		t.Errorf("reading pages of a lost device: %v", err)
	}
	select {
	case <-noticed:
	default:
		t.Error("nobody who waits is told")
	}
}

// TestStepFailsOnce: an error that the context survives fails one step, and the next one
// gives what it would have given.
func TestStepFailsOnce(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	s := engine.Sequence{Tokens: []int32{1, 2, 3}, Blocks: table(0, 1), Sample: &engine.Sample{}}
	want := step(t, e, s).Tokens[0]
	for _, call := range []string{"cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"} {
		control.Fail(call, 0, outOfMemory)
		if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}}); err == nil || errors.Is(err, engine.ErrDeviceLost) {
			t.Errorf("%s fails: %v", call, err)
		}
		if got := step(t, e, s).Tokens[0]; got != want {
			t.Errorf("after a failed %s the token is %d, want %d", call, got, want)
		}
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
}

// TestStartDoesNotWaitForFailure: what the driver refuses of a step that is started Wait
// tells, after which another step can be.
func TestStartDoesNotWaitForFailure(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	starting := e.(engine.AsyncStepper)
	s := engine.Sequence{Tokens: []int32{1}, Blocks: table(0, 1), Sample: &engine.Sample{}}
	want := step(t, e, s).Tokens[0]
	batch := engine.Batch{Sequences: []engine.Sequence{s}}
	for _, call := range []string{"cuMemcpyHtoDAsync_v2", "cuGraphLaunch"} {
		control.Fail(call, 0, outOfMemory)
		if err := starting.Start(t.Context(), batch); err != nil {
			t.Fatalf("%s fails: Start gave %v", call, err)
		}
		if _, err := starting.Wait(); err == nil || errors.Is(err, engine.ErrDeviceLost) || !strings.Contains(err.Error(), call) {
			t.Errorf("%s fails: Wait gave %v", call, err)
		}
		if got := step(t, e, s).Tokens[0]; got != want {
			t.Errorf("after a failed %s the token is %d, want %d", call, got, want)
		}
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
}

// TestSteadyState: a decode step allocates nothing.
func TestSteadyState(t *testing.T) {
	e := newEngine(t, load(t, filepath.Join(familiesDir, "llama")), small())
	sequences := []engine.Sequence{{Tokens: []int32{1}, Blocks: table(0, 1), Sample: &engine.Sample{}}, {Tokens: []int32{2}, Blocks: table(1, 1), Sample: &engine.Sample{}}}
	batch := engine.Batch{Sequences: sequences, TokenBuffer: make([]int32, 2)}
	run := func() {
		if _, err := e.Step(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(10, run); n > 0 {
		t.Errorf("%v allocations in a decode step", n)
	}
}
