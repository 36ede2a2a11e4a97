package gpu_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestPyTorchHasTheShapes: what gpu-check measures by PyTorch, to be compared with, is of
// the presets' shapes. Without Python the test is skipped.
func TestPyTorchHasTheShapes(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	script := filepath.Join("..", "..", "..", "..", "deploy", "gpu-check", "pytorch.py")
	for _, preset := range []string{"tiny", "bench-1b", "bench-8b"} {
		said, err := exec.CommandContext(t.Context(), python, script, "--describe", "--preset", preset).Output()
		if err != nil {
			t.Fatalf("%s: %v", preset, err)
		}
		var described struct {
			Shape struct {
				Hidden, Layers, Heads, FFN, Vocab, Context int
				KVHeads                                    int `json:"kv_heads"`
				HeadSize                                   int `json:"head_size"`
				Tied                                       bool
			}
		}
		if err := json.Unmarshal(said, &described); err != nil {
			t.Fatal(err)
		}
		s, got := described.Shape, model.Shape{Name: preset}
		want, err := model.Preset(preset)
		if err != nil {
			t.Fatal(err)
		}
		got.HiddenSize, got.Layers, got.Heads, got.KVHeads, got.HeadSize = s.Hidden, s.Layers, s.Heads, s.KVHeads, s.HeadSize
		got.FFNSize, got.VocabSize, got.ContextTokens, got.TiedEmbeddings, got.RopeTheta = s.FFN, s.Vocab, s.Context, s.Tied, want.RopeTheta
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
