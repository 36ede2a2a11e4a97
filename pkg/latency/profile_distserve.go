package latency

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// distServeEntry is one model at one degree of tensor parallelism in the file of
// coefficients that DistServe's simulator publishes (LLMServe/DistServe,
// simdistserve/estimators/profiled_data). Milliseconds.
type distServeEntry struct {
	// Threshold is the batch size up to which SmallBatch holds.
	Threshold int `json:"decoding_large_small_bs_threshold"`
	// Prefill is a, b, c of a + b·tokens + c·Σlength².
	Prefill []float64 `json:"prefill"`
	// SmallBatch and LargeBatch are a, b, c of a + b·Σcontext + c·batch.
	SmallBatch []float64 `json:"decoding_smallbs"`
	LargeBatch []float64 `json:"decoding_largebs"`
}

// ReadDistServe makes a profile of one entry of DistServe's file: a model's name
// and a degree of tensor parallelism. The error of a wrong name lists those there
// are.
func ReadDistServe(r io.Reader, model, tensorParallel string) (*Profile, error) {
	var file map[string]map[string]distServeEntry
	if err := readStrictly(r, &file, false); err != nil {
		return nil, fmt.Errorf("read DistServe's profile: %w", err)
	}
	degrees, known := file[model]
	if !known {
		return nil, fmt.Errorf("DistServe's profile has no model %q: choose one of %s", model, names(file))
	}
	entry, known := degrees[tensorParallel]
	if !known {
		return nil, fmt.Errorf("DistServe's profile has no tensor parallelism %q for %s: choose one of %s", tensorParallel, model, names(degrees))
	}
	for _, part := range []struct {
		name string
		abc  []float64
	}{{"prefill", entry.Prefill}, {"decoding_smallbs", entry.SmallBatch}, {"decoding_largebs", entry.LargeBatch}} {
		if len(part.abc) != 3 {
			return nil, fmt.Errorf("DistServe's profile, %s, %s: %d coefficients in %s: want 3", model, tensorParallel, len(part.abc), part.name)
		}
	}
	decode := func(abc []float64) Terms {
		return Terms{BaseMs: abc[0], PerContextTokenMs: abc[1], PerTokenMs: abc[2]}
	}
	p := &Profile{
		Version: ProfileVersion, Model: model, Source: "DistServe", Device: "tensor parallelism " + tensorParallel,
		Prefill: []Regime{{Terms: Terms{BaseMs: entry.Prefill[0], PerTokenMs: entry.Prefill[1], PerSquareMs: entry.Prefill[2]}}},
		Decode:  []Regime{{UpTo: entry.Threshold, Terms: decode(entry.SmallBatch)}, {Terms: decode(entry.LargeBatch)}},
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("DistServe's profile, %s, %s: %w", model, tensorParallel, err)
	}
	return p, nil
}

// names lists keys in order, not too many.
func names[V any](of map[string]V) string {
	const most = 20
	all := make([]string, 0, len(of))
	for name := range of {
		all = append(all, name)
	}
	slices.Sort(all)
	if len(all) > most {
		all = append(all[:most], "…")
	}
	return strings.Join(all, ", ")
}
