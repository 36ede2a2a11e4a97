package engines_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/memory"
)

func defaults() (config engines.Config) {
	config.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return config
}

// Types of a GPU's weights and KV are refused where no GPU computes, and those of weights
// where cuBLASLt does.
func TestCUDATypes(t *testing.T) {
	weights, kv := cuda.WeightTypes(), cuda.KVTypes()
	for _, c := range []struct {
		flag   string
		change func(*engines.Config)
	}{
		{"--cuda-weights", func(e *engines.Config) { e.CUDA.Weights = weights[len(weights)-1] }},
		{"--cuda-kv", func(e *engines.Config) { e.CUDA.KV = kv[len(kv)-1] }},
	} {
		only := len(weights) == 1
		if c.flag == "--cuda-kv" {
			only = len(kv) == 1
		}
		for _, place := range []struct {
			name    string
			refused bool
			change  func(*engines.Config)
		}{
			{"the CPU", true, func(e *engines.Config) { e.Device = engines.DeviceCPU }},
			{"the simulated engine", true, func(e *engines.Config) { e.Name = engines.Simulated }},
			{"cuBLASLt", c.flag == "--cuda-weights", func(e *engines.Config) { e.CUDA.Products = cuda.CublasLt }},
			{"a GPU", false, func(e *engines.Config) { e.Device = "cuda:1" }},
			{"whatever there is", false, func(*engines.Config) {}},
		} {
			config := defaults()
			place.change(&config)
			c.change(&config)
			if err := config.Validate(); (err != nil) != (place.refused && !only) || err != nil && !strings.HasPrefix(err.Error(), c.flag+": ") {
				t.Errorf("%s on %s: %v", c.flag, place.name, err)
			}
		}
	}
}

// Who asks for a GPU where there is no driver, or for what only the CPU engine does, is told the
// flags that run on the CPU, and those are accepted.
func TestFlagsForTheCPU(t *testing.T) {
	for _, c := range []struct{ given, advice, instead string }{
		{"--engine cuda", "--engine cpu", "--engine cpu"},
		{"--device cuda:0", "--device cpu", "--device cpu"},
		{"--engine cuda --device cuda:0", "--device cpu --engine cpu", "--device cpu --engine cpu"},
		{"--cuda-kv fp8", "--device cpu without --cuda-kv fp8", "--device cpu"},
		{"--engine cuda --gpu-memory 1GiB", "--engine cpu without --gpu-memory", "--engine cpu"},
	} {
		parse := func(flags string) (config engines.Config) {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			config.RegisterFlags(fs)
			if err := fs.Parse(strings.Fields(flags)); err != nil {
				t.Fatal(err)
			}
			return config
		}
		config := parse(c.given)
		if err := config.Validate(); err != nil {
			t.Errorf("%s: %v", c.given, err)
		}
		config.CUDA.Driver = "/nowhere/libcuda.so.1"
		want := ", or run on the CPU with " + c.advice
		err := config.Choose(llama8B(), slog.New(slog.DiscardHandler))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: error %v, want the end %q", c.given, err, want)
		}
		config.Name = engines.CUDA // as Choose would have it on a machine with a GPU
		want = "use --speculate off, or " + c.advice
		if _, err := config.LeftBesideDraft(fable(), 0, 1, memory.Left{Bytes: gib}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s with a draft model: error %v, want the end %q", c.given, err, want)
		}
		if config = parse(c.instead); config.Validate() != nil {
			t.Errorf("%s: %v", c.instead, config.Validate())
		}
	}
}
