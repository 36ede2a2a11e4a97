package workloads

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// FitSplitwise fits step times to Splitwise's measurements (Mutinifni/splitwise-sim,
// data/perf_model.csv) of a model on a device at a degree of tensor parallelism. A row is a
// batch of prompts of one length and the mean time of the steps of single tokens after it, on
// the way from those prompts to prompts and answers.
func FitSplitwise(r io.Reader, model, device string, degree int) (*latency.Profile, error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read measurements of Splitwise: %w", err)
	}
	if len(rows) == 0 {
		return nil, errors.New("read measurements of Splitwise: the file is empty")
	}
	var places [8]int
	for i, name := range []string{"model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time"} {
		if places[i] = slices.Index(rows[0], name); places[i] < 0 {
			return nil, fmt.Errorf("read measurements of Splitwise: there is no column %s", name)
		}
	}
	prompts, tokens := map[latency.Work][]float64{}, map[latency.Work][]float64{}
	for line, row := range rows[1:] {
		if row[places[0]] != model || row[places[1]] != device || row[places[2]] != strconv.Itoa(degree) {
			continue
		}
		var v [5]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(row[places[3+i]], 64); err != nil {
				return nil, fmt.Errorf("read measurements of Splitwise: line %d: %w", line+2, err)
			}
		}
		prompt, batch, answer := v[0], v[1], v[2]
		p := latency.Work{
			Tokens: int(prompt * batch), Sequences: int(batch), Samples: int(batch), Squares: batch * prompt * prompt, Context: batch * prompt,
		}
		d := latency.Work{Tokens: int(batch), Sequences: int(batch), Samples: int(batch), Context: batch * (prompt + answer/2)}
		prompts[p], tokens[d] = append(prompts[p], v[3]), append(tokens[d], v[4])
	}
	if len(prompts) == 0 {
		return nil, fmt.Errorf("measurements of Splitwise: there are none of %s on %s at tensor parallelism %d", model, device, degree)
	}
	p := &latency.Profile{
		Version: latency.ProfileVersion, Model: model, Device: fmt.Sprintf("%s, tensor parallelism %d", device, degree), Source: "Splitwise",
		Errors: map[string]latency.FitError{},
	}
	if p.Prefill, p.Errors["prefill"], err = latency.Fit(medians(prompts), latency.FitOptions{Square: true, MostRegimes: 3}); err != nil {
		return nil, err
	}
	if p.Decode, p.Errors["decode"], err = latency.Fit(medians(tokens), latency.FitOptions{Context: true, MostRegimes: 3}); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("measurements of Splitwise: %w", err)
	}
	return p, nil
}

// medians of the repeats of each kind of step, in an order that does not change.
func medians(of map[latency.Work][]float64) (all []latency.Measured) {
	for work, ms := range of {
		slices.Sort(ms)
		all = append(all, latency.Measured{Work: work, Ms: ms[len(ms)/2]})
	}
	slices.SortFunc(all, func(a, b latency.Measured) int {
		if a.Work.Tokens != b.Work.Tokens {
			return a.Work.Tokens - b.Work.Tokens
		}
		return int(a.Work.Context - b.Work.Context)
	})
	return all
}
