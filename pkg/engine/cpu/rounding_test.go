package cpu_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// roundedTo is plain rounding to 4 bits, in groups of 32: to so many steps of the largest
// magnitude on the side of the largest element, and one less on the other.
type roundedTo struct {
	name string
	// steps is what the largest element becomes.
	steps, other float64
}

var (
	sevenths = roundedTo{"sevenths", 7, 7}
	eighths  = roundedTo{"eighths", 8, 7}
)

// round rounds a group in place.
func (r roundedTo) round(group []float64) {
	var largest float64
	for _, x := range group {
		if math.Abs(x) > math.Abs(largest) {
			largest = x
		}
	}
	if largest == 0 {
		return
	}
	scale := largest / r.steps
	for i, x := range group {
		group[i] = scale * max(-r.other, math.RoundToEven(x/scale))
	}
}

// tensorEntry is a tensor in the header of a safetensors file.
type tensorEntry struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

// loadRounded loads the bundled model in bf16 with its layers' matrices rounded, and with
// head its output matrix too; the embedding stays. What bf16 cannot hold of the rounded
// values is a thousandth of what the rounding changed.
func loadRounded(t *testing.T, by roundedTo, head bool) *cpu.Weights {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(fableDir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	start := 8 + binary.LittleEndian.Uint64(file)
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(file[8:start], &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "__metadata__")
	data, tensors := file[start:], map[string]tensorEntry{}
	for name, text := range raw {
		var entry tensorEntry
		if err := json.Unmarshal(text, &entry); err != nil {
			t.Fatal(err)
		}
		tensors[name] = entry
	}
	output := tensors["model.embed_tokens.weight"]
	from := output.Offsets
	output.Offsets = [2]int{len(data), len(data) + from[1] - from[0]}
	data = append(data, data[from[0]:from[1]]...)
	tensors["lm_head.weight"] = output
	for name, entry := range tensors {
		if entry.DType != "BF16" {
			t.Fatalf("%s is %s", name, entry.DType)
		}
		if len(entry.Shape) == 2 && strings.Contains(name, "layers") || head && name == "lm_head.weight" {
			by.roundTensor(data[entry.Offsets[0]:entry.Offsets[1]], entry.Shape[1])
		}
	}
	header, err := json.Marshal(tensors)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file = append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	writeFile(t, filepath.Join(dir, "model.safetensors"), append(file, data...))
	config, err := os.ReadFile(filepath.Join(fableDir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	const tied = `"tie_word_embeddings": true`
	if !strings.Contains(string(config), tied) {
		t.Fatalf("no %s in the model's configuration", tied)
	}
	writeFile(t, filepath.Join(dir, "config.json"), []byte(strings.Replace(string(config), "true", "false", 1)))
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := load(t, m, 2)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return w
}

// roundTensor rounds rows of bf16 in place.
func (r roundedTo) roundTensor(data []byte, columns int) {
	const groupSize = 32
	for first := 0; first < len(data)/2; {
		n := min(groupSize, columns-first%columns)
		group := make([]float64, n)
		for i := range group {
			group[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*(first+i):])) << 16))
		}
		r.round(group)
		for i, x := range group {
			bits := math.Float32bits(float32(x))
			binary.LittleEndian.PutUint16(data[2*(first+i):], uint16((bits+0x7fff+bits>>16&1)>>16))
		}
		first += n
	}
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
