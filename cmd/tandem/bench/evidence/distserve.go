package evidence

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/loadtest/search"
)

// distServe compares with DistServe (Y. Zhong et al., OSDI '24).
type distServe struct{}

func (distServe) Name() string  { return "distserve" }
func (distServe) Title() string { return "DistServe's applications on four A100s" }

// perGPU is the goodput of the best of some layouts, requests a second and GPU, by DistServe's
// search: each layout begins at the best so far.
func (a application) perGPU(ctx context.Context, o Options, layouts []layout, p placement, f fabric, s distServeSearch, round int) (best float64, with layout, err error) {
	for _, l := range layouts {
		passes := func(perGPU float64) (bool, error) {
			t, err := newTrial(o.Profiles, a.scenario(o, l, p, f, s.requests, 1))
			if err != nil {
				return false, err
			}
			figures, err := t.at(ctx, perGPU*float64(l.gpus()), round)
			return err == nil && figures.SLOAttainment >= search.Share, err
		}
		if best > 0 { // is it better at all?
			if better, err := passes(best + s.within); err != nil || !better {
				if err != nil {
					return 0, nil, err
				}
				continue
			}
		}
		found, err := bisect(best, s.most, s.within, passes)
		if err != nil {
			return 0, nil, err
		}
		if found > best {
			best, with = found, l
		}
	}
	return best, with, nil
}

// distServeSearch bounds a search.
type distServeSearch struct {
	// most is the highest rate tried, within what the search stops at, both a GPU.
	most, within float64
	// requests is how many a rate gets.
	requests int
}

// column is a way of serving.
type column struct {
	placement
	fabric
}

// Run measures.
func (distServe) Run(ctx context.Context, o Options) (*Result, error) {
	rows := []application{
		{"chatbot, OPT-13B", opt13B, chatLengths, 0.25, 0.1},
		{"chatbot, OPT-66B", opt66B, chatLengths, 0.4, 0.1},
		{"code completion, OPT-66B", opt66B, codeLengths, 0.125, 0.2},
		{"summarization, OPT-66B", opt66B, summaryLengths, 15, 0.15},
	}
	columns := []column{
		{wholePrompts, free}, {aggregated, free},
		{disaggregated, free}, {disaggregated, nvLink}, {disaggregated, ethernet},
		{auto, nvLink}, {auto, ethernet},
	}
	s, rounds := distServeSearch{most: 8, within: 0.02, requests: 500}, 3
	if o.Small {
		rows, columns = rows[:1], []column{{aggregated, free}, {disaggregated, nvLink}, {auto, nvLink}}
		s, rounds = distServeSearch{most: 4, within: 0.05, requests: 200}, 2
	}
	found := make([]found, len(rows)*len(columns)*rounds)
	err := each(ctx, len(found), func(i int) error {
		round, cell := i%rounds, i/rounds
		row, col := rows[cell/len(columns)], columns[cell%len(columns)]
		layouts := row.model.together(4)
		if col.mode != "aggregated" {
			layouts = row.model.apart(4)
		}
		best, with, err := row.perGPU(ctx, o, layouts, col.placement, col.fabric, s, round)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", row.name, col.placement.name, err)
		}
		found[i].rate, found[i].layout = best, with
		o.say(fmt.Sprintf("distserve: %s, %s, %s, round %d: %s a GPU, %s", row.name, col.placement.name, col.fabric.name, round+1, rate(best), with))
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := &Result{}
	table := Table{
		Title: "Goodput, requests a second and GPU", Command: "tandem bench evidence --section distserve",
		Header: []string{"application", "SLO at p90: TTFT, TPOT"},
	}
	for _, c := range columns {
		name := c.placement.name
		if c.mode != "aggregated" {
			name += ", " + c.fabric.name
		}
		table.Header = append(table.Header, name)
	}
	for i, row := range rows {
		cells := []string{row.name, seconds(row.ttft) + ", " + seconds(row.tpot)}
		for j := range columns {
			at := (i*len(columns) + j) * rounds
			cells = append(cells, rate(mean(rates(found[at:at+rounds]))))
		}
		table.Rows = append(table.Rows, cells)
	}
	r.Tables = append(r.Tables, table)
	return r, nil
}

type found struct {
	rate   float64
	layout layout
}

func rates(of []found) (all []float64) {
	for _, f := range of {
		all = append(all, f.rate)
	}
	return all
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

const (
	chatLengths    = "  prompt-tokens: lognormal:754,500\n  output-tokens: lognormal:232,160\n"
	codeLengths    = "  prompt-tokens: lognormal:171.3,85\n  output-tokens: lognormal:98.2,50\n"
	summaryLengths = "  prompt-tokens: normal:1738.3,150\n  output-tokens: lognormal:90.7,60\n"
)
