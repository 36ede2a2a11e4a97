package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// The error of logits is the root mean square of what they are off over all positions,
// by the logits' size. What rounding activations to bf16 does to them is computed with
// them (Expected.Rounding, 0.004 to 0.015); the error of an engine that rounds likewise
// is of that size, because the rest of its arithmetic is float32.
const (
	// FamilyDifference is the error that one feature left out makes at least.
	FamilyDifference = 0.1
	// familyMargin is a lead that rounding does not turn: some 2% of logits whose
	// deviation is 3.
	familyMargin = 0.3
)

// Expected is what testdata/families/generate.py of engine/cpu computed of a family: tiny
// models of all architectures and scalings.
type Expected struct {
	// Prompt is the tokens whose logits are in Logits, Greedy what follows, each with
	// its lead.
	Prompt  []int32   `json:"prompt"`
	Greedy  []int32   `json:"greedy"`
	Margins []float64 `json:"margins"`
	// Rounding is the error of logits that rounding to bf16 makes, and RoundingDeferred
	// what it makes where the layers' norms are rounded before their root is multiplied in.
	Rounding         float64     `json:"rounding"`
	RoundingDeferred float64     `json:"rounding_deferred"`
	Logits           [][]float64 `json:"-"`
}

// Families are the folders of the tiny models below dir.
func Families(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", "config.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no families in %s (error %v)", dir, err)
	}
	for i, path := range paths {
		paths[i] = filepath.Dir(path)
	}
	return paths
}

// ExpectedOf reads what is expected of the family in dir.
func ExpectedOf(t testing.TB, dir string, vocabulary int) Expected {
	t.Helper()
	var e Expected
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile(filepath.Join(dir, "logits.f32")); err != nil {
		t.Fatal(err)
	}
	if len(e.Prompt) == 0 || len(data) != 4*len(e.Prompt)*vocabulary {
		t.Fatalf("%s: %d bytes of logits for %d tokens of a vocabulary of %d", dir, len(data), len(e.Prompt), vocabulary)
	}
	for row := range slices.Chunk(data, 4*vocabulary) {
		logits := make([]float64, vocabulary)
		for i := range logits {
			logits[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:])))
		}
		e.Logits = append(e.Logits, logits)
	}
	return e
}

// Difference is the root mean square of what got is off, by the size of want.
func Difference(got [][]float32, want [][]float64) float64 {
	var size, off float64
	for p := range want {
		for i := range want[p] {
			d := float64(got[p][i]) - want[p][i]
			size += want[p][i] * want[p][i]
			off += d * d
		}
	}
	return math.Sqrt(off / size)
}

// RunFamily compares the logits after every token of a prompt, and the greedy
// continuation, with what is expected of the family in dir. slack is how many times the
// error of rounding to bf16 the engine's may be.
func RunFamily(t *testing.T, dir string, e engine.Engine, slack float64) {
	want := ExpectedOf(t, dir, e.Model().VocabSize)
	runFamily(t, dir, e, want, slack, want.Rounding)
}

// RunFamilyDeferred is RunFamily for an engine that rounds the layers' norms before their
// root is multiplied in.
func RunFamilyDeferred(t *testing.T, dir string, e engine.Engine, slack float64) {
	want := ExpectedOf(t, dir, e.Model().VocabSize)
	runFamily(t, dir, e, want, slack, want.RoundingDeferred)
}

func runFamily(t *testing.T, dir string, e engine.Engine, want Expected, slack, rounding float64) {
	t.Helper()
	out := mustStep(t, e, engine.Sequence{Tokens: want.Prompt, Blocks: blocksFor(e, len(want.Prompt), 0), Logits: engine.LogitsAll})
	off := Difference(out.Logits[0], want.Logits)
	t.Logf("logits are off by %.5f of their size, by bf16's rounding by %.5f", off, rounding)
	if !(off < slack*rounding) || rounding > FamilyDifference/5 {
		t.Error("that is more than rounding explains")
	}
	compareGreedy(t, e, filepath.Base(dir), want.Prompt, want.Greedy, want.Margins, familyMargin)
}
