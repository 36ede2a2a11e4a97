package cpu_test

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
)

// leave copies a family's checkpoint to a new directory, with another config.json
// and without the tensors whose names contain a part in drop.
func leave(t *testing.T, family string, change map[string]any, drop ...string) string {
	t.Helper()
	from, to := filepath.Join(familiesDir, family), t.TempDir()
	var config map[string]any
	readJSON(t, filepath.Join(from, "config.json"), &config)
	maps.Copy(config, change)
	writeJSON(t, filepath.Join(to, "config.json"), config)
	data, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	start := 8 + binary.LittleEndian.Uint64(data)
	type tensor struct {
		DType   string    `json:"dtype"`
		Shape   []int     `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(data[8:start], &header); err != nil {
		t.Fatal(err)
	}
	kept, body := map[string]tensor{}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if name == "__metadata__" || slices.ContainsFunc(drop, func(part string) bool { return strings.Contains(name, part) }) {
			continue
		}
		var entry tensor
		if err := json.Unmarshal(header[name], &entry); err != nil {
			t.Fatal(err)
		}
		bytes := data[start+entry.Offsets[0] : start+entry.Offsets[1]]
		entry.Offsets = [2]uint64{uint64(len(body)), uint64(len(body) + len(bytes))}
		kept[name], body = entry, append(body, bytes...)
	}
	text, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(filepath.Join(to, "model.safetensors"), slices.Concat(file, text, body), 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

func writeJSON(t *testing.T, path string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFamiliesNotice: TestFamilies can fail. With one feature off, or a little
// wrong, logits are off by far more than it allows.
func TestFamiliesNotice(t *testing.T) {
	type keys = map[string]any
	noScaling := keys{"rope_scaling": nil, "max_position_embeddings": 512}
	asLlama := keys{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama"}
	yarn := func(change keys) keys {
		scaling := keys{"beta_fast": 8, "beta_slow": 0.5, "factor": 8.0, "mscale": 2.0, "mscale_all_dim": 0.2,
			"original_max_position_embeddings": 64, "rope_type": "yarn", "truncate": false}
		maps.Copy(scaling, change)
		return keys{"rope_scaling": scaling}
	}
	for _, c := range []struct {
		family, what string
		change       keys
		drop         []string
	}{
		{"llama-linear", "no scaling", noScaling, nil},
		{"llama-llama3", "no scaling", noScaling, nil},
		{"llama-yarn-mscale", "no scaling", noScaling, nil},
		{"llama-yarn-mscale", "no scales of its own", yarn(keys{"mscale": nil, "mscale_all_dim": nil}), nil},
		{"llama-yarn-mscale", "cosines and sines not multiplied", yarn(keys{"attention_factor": 1}), nil},
		{"llama-yarn-mscale", "another fast end", yarn(keys{"beta_fast": 32}), nil},
		{"llama-yarn-mscale", "whole dimensions", yarn(keys{"truncate": true}), nil},
		{"mistral", "no window", keys{"sliding_window": nil}, nil},
		{"mistral", "a token more in the window", keys{"sliding_window": 22}, nil},
		{"mistral", "a token less in the window", keys{"sliding_window": 20}, nil},
		{"qwen2", "no bias", asLlama, []string{".bias"}},
		{"qwen2-window", "no window", keys{"use_sliding_window": false}, nil},
		{"qwen2-window", "a window in every layer", keys{"max_window_layers": 0}, nil},
		{"qwen2-yarn", "no scaling", noScaling, nil},
		{"qwen3", "no norm of queries and keys", asLlama, []string{"q_norm", "k_norm"}},
		{"qwen3-yarn-window", "no scaling", noScaling, nil},
		{"qwen3-yarn-window", "no window", keys{"use_sliding_window": false}, nil},
	} {
		t.Run(c.family+": "+c.what, func(t *testing.T) {
			w := load(t, openModel(t, leave(t, c.family, c.change, c.drop...)), 2)
			want := enginetest.ExpectedOf(t, filepath.Join(familiesDir, c.family), w.Spec().VocabSize)
			got := logitsOf(t, newEngine(t, w, cpu.Config{Blocks: 8}), want.Prompt, table(0, 4))
			off := enginetest.Difference(got, want.Logits)
			t.Logf("logits are off by %.4f of their size", off)
			if !(off > enginetest.FamilyDifference) {
				t.Error("that is too little to be noticed")
			}
		})
	}
	t.Run("nothing changed", func(t *testing.T) {
		w := load(t, openModel(t, leave(t, "qwen3", nil)), 2)
		want := enginetest.ExpectedOf(t, filepath.Join(familiesDir, "qwen3"), w.Spec().VocabSize)
		if off := enginetest.Difference(logitsOf(t, newEngine(t, w, cpu.Config{Blocks: 8}), want.Prompt, table(0, 4)), want.Logits); !(off < familySlack*want.Rounding) {
			t.Errorf("logits are off by %.4f of their size", off)
		}
	})
}
