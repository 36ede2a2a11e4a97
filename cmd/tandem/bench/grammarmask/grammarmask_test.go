package grammarmask_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/grammarmask"
)

func TestMeasure(t *testing.T) {
	r, err := grammarmask.Measure(t.Context(), grammarmask.Plan{Sizes: []int{3000}, Outputs: 2, MaxTokens: 40})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Forms) < 5 || len(r.FirstMask) != 1 || r.FirstMask[0].SchemaBytes < 10_000 {
		t.Fatalf("%+v", r)
	}
	for _, f := range r.Forms {
		if f.Vocabulary != 3000 || f.New.Masks < 8 || f.Used.Masks < 2 || f.New.P50 > f.New.P99 || f.New.P99 > f.New.Max || f.Used.P50 > f.Used.Max {
			t.Errorf("%+v", f)
		}
	}
}

func TestSynthetic(t *testing.T) {
	texts := grammarmask.Synthetic(20_000)
	seen := map[string]bool{}
	for id, text := range texts {
		if id > 0 && (len(text) == 0 || seen[string(text)]) {
			t.Fatalf("token %d is %q", id, text)
		}
		seen[string(text)] = true
	}
	if len(texts) != 20_000 {
		t.Errorf("%d tokens", len(texts))
	}
}
