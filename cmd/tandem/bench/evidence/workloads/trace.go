package workloads

import (
	"errors"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// ReadTrace reads all requests of a trace, a file in the folder --traces.
func ReadTrace(path string) ([]trace.Entry, error) {
	file, err := trace.Open(path, trace.Auto)
	if err != nil {
		return nil, fmt.Errorf("--traces: %w", err)
	}
	defer file.Close()
	var all []trace.Entry
	for {
		e, err := file.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) < 100 {
		return nil, fmt.Errorf("%s has %d requests, too few to fit anything to", path, len(all))
	}
	return all, nil
}

// Ideal is the share of the prompts' tokens that a prefix cache without limits would have.
func Ideal(all []trace.Entry) float64 {
	seen, hit, of := map[uint64]bool{}, 0, 0
	for _, e := range all {
		for i, b := range e.Blocks {
			if !seen[b] {
				break
			}
			hit += min(trace.BlockTokens, e.PromptTokens-i*trace.BlockTokens)
		}
		for _, b := range e.Blocks {
			seen[b] = true
		}
		of += e.PromptTokens
	}
	return float64(hit) / float64(of)
}
