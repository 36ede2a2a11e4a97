//go:build !asan

package cpu_test

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// resident is the process's memory of its own, outside files, in bytes: in pages or
// swapped out. Go's heap gives back first what it does not use.
func resident(t *testing.T) float64 {
	t.Helper()
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Skipf("no figures of memory here: %v", err)
	}
	defer f.Close()
	var sum float64
	found := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "RssAnon" && name != "VmSwap" {
			continue
		}
		kb, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
		if err != nil {
			t.Fatalf("/proc/self/status: %q", lines.Text())
		}
		found = found || name == "RssAnon"
		sum += 1024 * kb
	}
	if !found {
		t.Skip("this system does not say what of the memory is in files")
	}
	return sum
}

// within says whether got is near want: by 2% of it.
func within(got, want float64) bool { return got >= 0.98*want && got <= 1.02*want }

// TestKVMemoryIsWhatWasAskedFor: pages take the memory that they may and no more, none
// of it before they are written, and give it back.
func TestKVMemoryIsWhatWasAskedFor(t *testing.T) {
	for _, kv := range []cpu.KVType{cpu.KVBF16, cpu.KVInt8} {
		t.Run(string(kv), func(t *testing.T) { kvMemoryIsWhatWasAskedFor(t, kv) })
	}
}

func kvMemoryIsWhatWasAskedFor(t *testing.T, kv cpu.KVType) {
	const asked = 256 << 20 // 2% of it is far more than the rest of the process moves by
	w := loadFable(t, 2)
	before := resident(t)
	e, err := w.NewEngine(cpu.Config{KVBytes: asked, KV: kv})
	if err != nil {
		t.Fatal(err)
	}
	capacity := e.Capacity()
	if got := capacity.Blocks * capacity.Layout.PageBytes(); got > asked || !within(float64(got), asked) {
		t.Errorf("%d bytes of pages, asked for %d", got, asked)
	}
	if got := resident(t) - before; got > 0.02*asked {
		t.Errorf("pages that nobody wrote take %.0f bytes", got)
	}
	for block := range capacity.Blocks {
		for layer := range capacity.Layout.Layers {
			view := e.Pages().View(layer, table(block, 1)[0])
			for at := 0; at < len(view); at += 1 << 10 {
				view[at] = 1
			}
		}
	}
	if got := resident(t) - before; !within(got, asked) {
		t.Errorf("all pages written take %.0f bytes, asked for %d", got, asked)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got := resident(t) - before; got > 0.02*asked {
		t.Errorf("after Close %.0f bytes are left", got)
	}
}

// TestWeightsAreInMemoryOnce: packed, and the checkpoint is not mapped any more.
func TestWeightsAreInMemoryOnce(t *testing.T) {
	shape := model.Shape{
		HiddenSize: 1024, Layers: 4, Heads: 16, KVHeads: 4, HeadSize: 64, FFNSize: 2816, VocabSize: 4096, ContextTokens: 512, RopeTheta: 10000,
	}
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as the kernel names what is mapped
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "model")
	if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{Seed: 3}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []cpu.WeightType{cpu.BF16, cpu.Int8, cpu.Int4} {
		before := resident(t)
		m, err := model.Open(dir, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := cpu.Load(t.Context(), m, cpu.Config{Weights: kind, Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		if !mapped(t, dir) {
			t.Errorf("%s: the files of an open model are not mapped: the test looks in the wrong place", kind)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if mapped(t, dir) {
			t.Errorf("%s: the checkpoint is mapped still", kind)
		}
		// The kernel may give a stack or Go's heap a huge page or two meanwhile.
		const others = 4 << 20
		if got, want := resident(t)-before, float64(w.Bytes()); !within(got, want) && math.Abs(got-want) > others {
			t.Errorf("%s: loaded weights take %.0f bytes, packed ones are %.0f", kind, got, want)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := resident(t) - before; got > others {
			t.Errorf("%s: after Close %.0f bytes are left", kind, got)
		}
	}
}

// mapped says whether a file of dir is in the process's memory.
func mapped(t *testing.T, dir string) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skipf("nothing says what is mapped: %v", err)
	}
	return strings.Contains(string(maps), dir)
}
