package cpu_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// cachedShapes are models that packing treats differently: windows and biases are not
// in the panels, a tied embedding is there once or twice.
func cachedShapes(t *testing.T) map[string]model.Shape {
	t.Helper()
	shapes := map[string]model.Shape{}
	for _, name := range []string{"tiny", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"} {
		shape, err := model.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		shapes[name] = shape
	}
	return shapes
}

// modelDir writes random weights.
func modelDir(t *testing.T, shape model.Shape) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{Seed: 3}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loadWith loads and says what was warned of.
func loadWith(t *testing.T, m *model.Model, config cpu.Config) (*cpu.Weights, string) {
	t.Helper()
	var warnings []string
	config.Warn = func(err error) { warnings = append(warnings, err.Error()) }
	w, err := cpu.Load(t.Context(), m, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, strings.Join(warnings, "\n")
}

// TestCache: weights that were read packed compute the same bits, whatever instruction
// set and threads wrote them, and nothing of the checkpoint is read for them.
func TestCache(t *testing.T) {
	for name, shape := range cachedShapes(t) {
		t.Run(name, func(t *testing.T) {
			inEachType(t, func(t *testing.T, kind cpu.WeightType) {
				dir, cache := modelDir(t, shape), filepath.Join(t.TempDir(), "cache")
				tokens := randomTokens(rand.New(rand.NewPCG(4, 4)), 64, shape.VocabSize)
				packed, warned := loadWith(t, openModel(t, dir), cpu.Config{Weights: kind, Threads: 1, ISA: "portable", WeightCache: cache})
				if packed.FromCache() || warned != "" {
					t.Fatalf("from an empty folder: cached %t, %s", packed.FromCache(), warned)
				}
				want := logitsOf(t, newEngine(t, packed, cpu.Config{Blocks: 2}), tokens, table(0, 2))

				m := openModel(t, dir)
				// Its tensors are mapped: what is written to the file shows in them.
				weights := filepath.Join(dir, "model.safetensors")
				info, err := os.Stat(weights)
				if err != nil {
					t.Fatal(err)
				}
				file, err := os.OpenFile(weights, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = file.Write(make([]byte, info.Size()))
				if err := errors.Join(err, file.Close()); err != nil {
					t.Fatal(err)
				}
				for _, set := range kernels.Usable() {
					cached, warned := loadWith(t, m, cpu.Config{Weights: kind, Threads: 2, ISA: set.Name(), WeightCache: cache})
					if !cached.FromCache() || warned != "" {
						t.Fatalf("%s: cached %t, %s", set.Name(), cached.FromCache(), warned)
					}
					sameBits(t, set.Name(), logitsOf(t, newEngine(t, cached, cpu.Config{Blocks: 2}), tokens, table(0, 2)), want)
				}
			})
		})
	}
}

// TestCacheTypes: each type of weights has a file of its own.
func TestCacheTypes(t *testing.T) {
	m, cache := openModel(t, fableDir), t.TempDir()
	for _, want := range []bool{false, true} {
		inEachType(t, func(t *testing.T, kind cpu.WeightType) {
			if w, warned := loadWith(t, m, cpu.Config{Weights: kind, Threads: 1, WeightCache: cache}); w.FromCache() != want || warned != "" {
				t.Errorf("cached %t, want %t; %s", w.FromCache(), want, warned)
			}
		})
	}
}

// TestCacheDamaged: a damaged file is said, packed again and written anew.
func TestCacheDamaged(t *testing.T) {
	inEachType(t, func(t *testing.T, kind cpu.WeightType) {
		m, cache := openModel(t, fableDir), t.TempDir()
		config := cpu.Config{Weights: kind, Threads: 2, WeightCache: cache}
		tokens := prompt(40, 4096)
		packed, _ := loadWith(t, m, config)
		want := logitsOf(t, newEngine(t, packed, cpu.Config{Blocks: 2}), tokens, table(0, 2))
		files, err := filepath.Glob(filepath.Join(cache, "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("the folder has %v (%v)", files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1000] ^= 1
		if err := os.WriteFile(files[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
		again, warned := loadWith(t, m, config)
		if again.FromCache() || !strings.Contains(warned, "damaged") || strings.Contains(warned, "\n") {
			t.Errorf("cached %t, warned of %q", again.FromCache(), warned)
		}
		sameBits(t, "packed again", logitsOf(t, newEngine(t, again, cpu.Config{Blocks: 2}), tokens, table(0, 2)), want)
		cached, warned := loadWith(t, m, config)
		if !cached.FromCache() || warned != "" {
			t.Errorf("after that: cached %t, warned of %q", cached.FromCache(), warned)
		}
		sameBits(t, "from the new file", logitsOf(t, newEngine(t, cached, cpu.Config{Blocks: 2}), tokens, table(0, 2)), want)
	})
}

// TestCacheUnusable: a folder that cannot be one costs a warning, not the weights.
func TestCacheUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w, warned := loadWith(t, openModel(t, fableDir), cpu.Config{Threads: 1, WeightCache: file})
	if w.FromCache() || !strings.Contains(warned, "next start will pack them again") {
		t.Errorf("cached %t, warned of %q", w.FromCache(), warned)
	}
}

// TestCacheAtOnce starts several loads of one model at a time.
func TestCacheAtOnce(t *testing.T) {
	m, cache := openModel(t, fableDir), t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2 {
				w, err := cpu.Load(context.Background(), m, cpu.Config{Threads: 2, WeightCache: cache, Warn: func(err error) { t.Error(err) }})
				if err != nil {
					t.Error(err)
					continue
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if files, err := os.ReadDir(cache); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v (%v)", files, err)
	}
}

// TestCacheProgress: what is read or written packed counts, and a caller who gives up
// meanwhile is heard.
func TestCacheProgress(t *testing.T) {
	m, cache := openModel(t, fableDir), t.TempDir()
	parameters := 2 * m.Spec().Parameters()
	totals := map[string]int64{}
	for _, stage := range []string{"pack", "read"} {
		var last, total int64
		loaded, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 2, WeightCache: cache, Progress: func(done, all int64) {
			if done <= last || total != 0 && all != total {
				t.Errorf("%s: progress went from %d to %d of %d", stage, last, done, all)
			}
			last, total = done, all
		}})
		if err != nil {
			t.Fatal(err)
		}
		totals[stage] = total
		if last != total || loaded.FromCache() != (stage == "read") {
			t.Errorf("%s: progress ended at %d of %d, cached %t", stage, last, total, loaded.FromCache())
		}
		if err := loaded.Close(); err != nil {
			t.Error(err)
		}
	}
	if totals["read"] < parameters || totals["pack"] < parameters+totals["read"] {
		t.Errorf("progress of %v bytes, the weights are %d", totals, parameters)
	}
	giveUp := func(what, dir string, after int64) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := cpu.Load(ctx, m, cpu.Config{Threads: 1, WeightCache: dir,
			Progress: func(done, all int64) {
				if done > after {
					cancel()
				}
			},
			Warn: func(err error) { t.Errorf("%s: warned of %v", what, err) }})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a load that was given up gave %v", what, err)
		}
	}
	giveUp("read", cache, 0)
	empty := t.TempDir()
	giveUp("written", empty, parameters)
	if files, err := os.ReadDir(empty); err != nil || len(files) != 0 {
		t.Errorf("after a write that was given up the folder has %v (%v)", files, err)
	}
}
