package workerdriver_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// randomSchema is a schema of at most so many levels.
func randomSchema(r *rand.Rand, levels int) map[string]any {
	kinds := 4
	if levels > 0 {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0:
		return map[string]any{"type": "integer", "minimum": -r.IntN(100), "maximum": r.IntN(1000)}
	case 1:
		return map[string]any{"type": "string", "maxLength": 1 + r.IntN(12)}
	case 2:
		return map[string]any{"enum": []any{"red", "green", true, nil, r.IntN(50)}}
	case 3:
		return map[string]any{"type": "string", "pattern": "^[ab]{1,6}(-[cd]{2})?$"}
	case 4:
		return map[string]any{"type": "array", "items": randomSchema(r, levels-1), "minItems": r.IntN(4), "maxItems": 4 + r.IntN(6)}
	}
	properties, required := map[string]any{}, []string{}
	for i := range 1 + r.IntN(4) {
		name := fmt.Sprintf("name%d", i)
		properties[name] = randomSchema(r, levels-1)
		if r.IntN(2) == 0 {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// jsonTokens are the texts of a small vocabulary: all bytes, after pieces of JSON.
func jsonTokens() [][]byte {
	texts := [][]byte{nil, nil, nil} // 1 and 2 begin and end a text
	for _, piece := range []string{`{"`, `":`, `","`, `"name0":`, `name`, `"}`, `[`, `]`, `},{`, `red`, `green"`, `true`, `null`, `12`, `345`, `ab`, `-cd`} {
		texts = append(texts, []byte(piece))
	}
	for b := range 256 {
		texts = append(texts, []byte{byte(b)})
	}
	return texts
}

// TestDraftsUnderSchemas: outputs that are held to schemas are the same with drafts and without
// them, bit for bit, and some drafts were right.
func TestDraftsUnderSchemas(t *testing.T) {
	texts := jsonTokens()
	vocabulary, err := grammar.NewVocabulary(len(texts), func(id int32) []byte { return texts[id] })
	if err != nil {
		t.Fatal(err)
	}
	var all, right int
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		// Each run has constraints of its own.
		requests := func() (out []scheduler.Request) {
			r := rand.New(rand.NewPCG(seed, 2))
			for i := range 4 {
				source, err := json.Marshal(randomSchema(r, 3))
				if err != nil {
					t.Fatal(err)
				}
				form, err := grammar.Compile(t.Context(), &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: string(source)}}, vocabulary)
				if err != nil {
					t.Fatalf("%s: %v", source, err)
				}
				out = append(out, scheduler.Request{
					Tokens: []int32{3, 4, 5, 3, 4}, MaxTokens: 90, Stop: []int32{2}, Constraint: form.Constrain([]int32{2}),
					Sampling: sampler.Params{Temperature: float32(i%2) * 0.9, Seed: seed},
				})
			}
			return out
		}
		synctest.Test(t, func(t *testing.T) {
			want, _, _, _ := draftingFor(t, 0, len(texts), requests())
			got, drafts, accepted, _ := draftingFor(t, 1+r.IntN(8), len(texts), requests())
			if !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
				t.Errorf("seed %d: with drafts %v, without %v", seed, got, want)
			}
			all, right = all+drafts, right+accepted
		})
	}
	if right < 20 || right >= all {
		t.Errorf("%d of %d drafts were right", right, all)
	}
}

// TestForcedTextIsDrafted: text that a constraint leaves no choice of comes in fewer steps, also where nothing of it
// stood in the text before.
func TestForcedTextIsDrafted(t *testing.T) {
	texts := jsonTokens()
	vocabulary, err := grammar.NewVocabulary(len(texts), func(id int32) []byte { return texts[id] })
	if err != nil {
		t.Fatal(err)
	}
	const text = "QWERTZUIOPASDFGHJKLYXCVBNM"
	form, err := grammar.Compile(t.Context(), &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: text}}, vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		got, drafts, accepted, _ := draftingFor(t, 4, len(texts), []scheduler.Request{{
			Tokens: []int32{3, 4, 5}, MaxTokens: 90, Stop: []int32{2}, Constraint: form.Constrain([]int32{2}),
		}})
		var output []byte
		for _, token := range got[0] {
			output = append(output, texts[token]...)
		}
		if string(output) != text || drafts < len(text)/3 || accepted < drafts-4 {
			t.Errorf("%q, %d of %d drafts were right", output, accepted, drafts)
		}
	})
}
