package mesh_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// altered is a folder with the bundled model, one file of which has other bytes.
func altered(t *testing.T, model, file string, alter func([]byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(model, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == file {
			data = alter(data)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A draft model that cannot guess is refused before any weights are read, in one line.
func TestADraftModelThatCannotGuess(t *testing.T) {
	model := upOptions(t).Model
	swapped := func(data []byte) []byte {
		for _, r := range [][2]string{{`"§": 100`, `"§": 101`}, {`"¨": 101`, `"¨": 100`}} {
			if !bytes.Contains(data, []byte(r[0])) {
				t.Fatalf("there is no %s", r[0])
			}
			data = bytes.Replace(data, []byte(r[0]), []byte(r[1]), 1)
		}
		return data
	}
	for says, c := range map[string]struct {
		draft  string
		change func(*mesh.UpOptions)
	}{
		"--draft-model names nowhere":                 {"nowhere", nil},
		"--draft-model: token 100 is":                 {altered(t, model, "tokenizer.json", swapped), nil},
		"use --speculate off, or --engine cpu":        {model, func(o *mesh.UpOptions) { o.Engine.Name = engines.Simulated }},
		"--draft-kv-memory: 4194304.0TiB for each of": {model, func(o *mesh.UpOptions) { o.Decode.DraftKVMemory = 4 << 60 }},
		"--draft-kv-memory: 1KiB does not hold one ":  {model, func(o *mesh.UpOptions) { o.Decode.DraftKVMemory = 1 << 10 }},
	} {
		o := upOptions(t)
		o.Engine.Name, o.Engine.KVMemory = engines.CPU, 64<<20
		o.Decode.Speculate, o.Decode.DraftModel = "draft", c.draft
		if c.change != nil {
			c.change(&o)
		}
		err := mesh.Run(t.Context(), o, quiet, telemetry.NewRegistry(), neverLoads(t), func(mesh.Up) { t.Error("it started") })
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, which should say %q", err, says)
		}
	}
}

// A tokenizer that is written in another way and says the same is no other one.
func TestTheSameTokenizerWrittenDifferently(t *testing.T) {
	o := upOptions(t)
	o.Engine.Name, o.Engine.KVMemory, o.Engine.CPU.Threads = engines.CPU, 64<<20, 1
	o.Decode.Speculate, o.Decode.DraftModel = "draft", altered(t, o.Model, "tokenizer.json", func(data []byte) []byte { return append(data, '\n', ' ') })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready := false
	if err := mesh.Run(ctx, o, quiet, telemetry.NewRegistry(), ignore, func(mesh.Up) { ready = true; stop() }); err != nil || !ready {
		t.Errorf("ready %v, error %v", ready, err)
	}
}
