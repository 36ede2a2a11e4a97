package commands_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bundled is the bundled model, from this package's folder.
var bundled = filepath.Join("..", "..", "..", "..", "models", "fable")

// An error that quotes a list of several lines stays one readable line.
func TestAQuotedListIsOneLine(t *testing.T) {
	folder := t.TempDir()
	config := "{\n  \"architectures\": [\n    \"MixtralForCausalLM\"\n  ],\n  \"model_type\": \"mixtral\"\n}\n"
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	checkFailure(t, run(t.Context(), "", nil, "up", "--model", folder), 1, `["MixtralForCausalLM"] is not supported (a mixture of experts)`)
}

func TestModelTokenize(t *testing.T) {
	cases, err := os.Open(filepath.Join(bundled, "tokenizer_cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer cases.Close()
	lines := bufio.NewScanner(cases)
	lines.Buffer(nil, 1<<20)
	for n := 0; n < 20 && lines.Scan(); n++ {
		var c struct {
			Text     string
			Special  bool    `json:"add_special_tokens"`
			TokenIDs []int32 `json:"token_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		args := []string{"model", "tokenize", bundled, "--json"}
		if !c.Special {
			args = append(args, "--no-special")
		}
		got := run(t.Context(), c.Text, nil, args...)
		var result struct {
			TokenIDs []int32 `json:"token_ids"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || got.status != 0 {
			t.Fatalf("%v: %+v", err, got)
		}
		if diff := cmp.Diff(append([]int32{}, c.TokenIDs...), result.TokenIDs); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.Text, diff)
		}
	}
	if got := run(t.Context(), "", nil, "model", "tokenize", bundled, "--json", "--no-special"); got.stdout != `{"token_ids":[]}`+"\n" {
		t.Errorf("no text: %+v", got)
	}
}

func TestModelInspect(t *testing.T) {
	got := run(t.Context(), "", nil, "model", "inspect", bundled, "--json")
	result := last(t, got.stdout)
	want := map[string]any{
		"name": "fable", "layers": 4.0, "hidden_size": 256.0, "heads": 4.0, "kv_heads": 2.0, "head_size": 64.0,
		"vocab_size": 4096.0, "tied_embeddings": true, "weight_type": "bf16", "context_tokens": 2048.0,
		"kv_bytes_per_token": 2.0 * 4 * 2 * 64 * 2, "kv_int8_bytes_per_token": 2.0 * 4 * 2 * (64 + 2), "kv_bytes_full_context": 2.0 * 4 * 2 * 64 * 2 * 2048,
	}
	for key, value := range want {
		if result[key] != value {
			t.Errorf("%s = %v, want %v", key, result[key], value)
		}
	}
	// Of a model whose sizes are whole tiles bf16 takes two bytes an element; norms and angles come on top.
	onGPU := func(key, kind string) float64 {
		m, _ := result[key].(map[string]any)
		n, _ := m[kind].(float64)
		return n
	}
	parameters, _ := result["parameters"].(float64)
	if weights := onGPU("gpu_weight_bytes", "bf16"); weights < 2*parameters || weights > 2.2*parameters {
		t.Errorf("%v bytes of weights on a GPU, of %v parameters", weights, parameters)
	}
	if kv := onGPU("gpu_kv_bytes_per_token", "bf16"); kv != want["kv_bytes_per_token"] {
		t.Errorf("%v bytes of KV for a token on a GPU", kv)
	}
	if digest, _ := result["digest"].(string); len(digest) != 32 {
		t.Errorf("digest = %q", digest)
	}
	if p, _ := result["parameters"].(float64); p < 4e6 || p > 4.5e6 {
		t.Errorf("parameters = %v", p)
	}
	if template, ok := result["chat_template"].(map[string]any); !ok || template["usable"] != true {
		t.Errorf("chat_template is %v", result["chat_template"])
	}
	got = run(t.Context(), "", nil, "model", "inspect", bundled)
	if got.status != 0 || !strings.Contains(got.stdout, "4 layers, hidden 256") || !strings.Contains(got.stdout, "2.00 KiB a token") || !strings.Contains(got.stdout, "KV of a token 2.00 KiB as bf16") {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "model", "inspect", t.TempDir()), 1, "config.json")
}

// TestModelInspectDraft: what a draft model takes is shown beside its model, if it can guess for it.
func TestModelInspectDraft(t *testing.T) {
	result := last(t, run(t.Context(), "", nil, "model", "inspect", bundled, "--draft-model", bundled, "--json").stdout)
	draft, _ := result["draft_model"].(map[string]any)
	for _, key := range []string{"name", "parameters", "packed_weight_bytes", "kv_bytes_per_token", "kv_int8_bytes_per_token"} {
		if draft[key] == nil || draft[key] != result[key] {
			t.Errorf("%s = %v, of the model itself %v", key, draft[key], result[key])
		}
	}
	text := run(t.Context(), "", nil, "model", "inspect", bundled, "--draft-model", bundled).stdout
	if !strings.Contains(text, "draft model") || !strings.Contains(text, "KV 2.00 KiB a token") {
		t.Errorf("it says\n%s", text)
	}
	checkFailure(t, run(t.Context(), "", nil, "model", "inspect", bundled, "--draft-model", t.TempDir()), 1, "--draft-model")
}

// TestModelInspectFamilies: what sets a family apart is shown.
func TestModelInspectFamilies(t *testing.T) {
	for preset, want := range map[string]struct {
		json map[string]any
		text []string
	}{
		"tiny-mistral":    {map[string]any{"family": "mistral", "window_tokens": 48.0, "window_layers": 2.0, "rope_scaling": nil}, []string{"2 of 2 layers see 48 tokens", "not scaled"}},
		"tiny-qwen2":      {map[string]any{"family": "qwen2", "qkv_bias": true, "window_layers": 2.0}, []string{"2 of 3 layers see 40 tokens, biases of Q, K and V", "repetition penalty 1.05", "top-k 20"}},
		"tiny-qwen3":      {map[string]any{"family": "qwen3", "qk_norm": true, "window_tokens": 0.0}, []string{"every layer sees all, norms of Q and K", "temperature 0.6, top-p 0.95"}},
		"tiny-qwen3-yarn": {map[string]any{"context_tokens": 512.0}, []string{"512 tokens, RoPE base 1e+06, scaled by yarn: 4 times from 128 tokens", "none set by the model"}},
		"tiny-llama3":     {map[string]any{"family": "llama"}, []string{"scaled by llama3: 8 times from 128 tokens"}},
	} {
		dir := filepath.Join(t.TempDir(), preset)
		if got := run(t.Context(), "", nil, "model", "synth", "--preset", preset, "--out", dir); got.status != 0 {
			t.Fatalf("%s: %+v", preset, got)
		}
		result := last(t, run(t.Context(), "", nil, "model", "inspect", dir, "--json").stdout)
		for key, value := range want.json {
			if result[key] != value {
				t.Errorf("%s: %s = %v, want %v", preset, key, result[key], value)
			}
		}
		text := run(t.Context(), "", nil, "model", "inspect", dir).stdout
		for _, part := range want.text {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q does not say %q", preset, text, part)
			}
		}
	}
}

func TestModelWithoutTokenizer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	if got := run(t.Context(), "", nil, "model", "synth", "--preset=tiny", "--out", dir); got.status != 0 || !strings.HasSuffix(got.stdout, "\ntry: tandem up --model "+dir+"\n") {
		t.Fatalf("got %+v", got)
	}
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"inspect", "tokenize"} {
		checkFailure(t, run(t.Context(), "x", nil, "model", command, dir), 1, "there is no tokenizer: fetch tokenizer.json")
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("version https://git-lfs.github.com/spec/v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkFailure(t, run(t.Context(), "", nil, "model", "inspect", dir), 1, "tokenizer.json is a Git LFS pointer")
}

func TestModelSynth(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	got := run(t.Context(), "", nil, "model", "synth", "--preset=tiny", "--out", dir, "--json")
	if got.status != 0 || got.stderr != "" || last(t, got.stdout)["preset"] != "tiny" {
		t.Fatalf("got %+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{ messages|foo }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t.Context(), "", nil, "model", "inspect", dir); got.status != 0 || !strings.Contains(got.stdout, "foo") {
		t.Errorf("a chat template that is not known: %+v", got)
	}
	if got := run(t.Context(), "", nil, "model", "inspect", dir); got.status != 0 || !strings.Contains(got.stdout, "2 layers, hidden 64") {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "model", "synth", "--preset=tiny", "--out", dir), 1, dir)
	file := filepath.Join(dir, "config.json")
	checkFailure(t, run(t.Context(), "", nil, "model", "synth", "--preset=tiny", "--out", filepath.Join(file, "x")), 1,
		"name a directory that you may write to")
	checkFailure(t, run(t.Context(), "", nil, "model", "synth", "--preset=huge", "--out", dir), 2, "bench-200m")
	checkFailure(t, run(t.Context(), "", nil, "model", "synth", "--preset=tiny"), 2, "pass --out DIR")
	checkFailure(t, run(t.Context(), "", nil, "model", "synth", "--out=x"), 2, "pass --preset")
}
