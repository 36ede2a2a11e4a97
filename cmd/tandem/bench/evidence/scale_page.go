package evidence

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/router"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// scaleResult is what the page says of scale. perBlock is the bytes of an index for each block.
func scaleResult(all []scaled, timed []*router.Result, perBlock float64) *Result {
	host := report.ThisHost()
	machine := fmt.Sprintf("%s, %d cores, %s", host.CPU, host.Cores, time.Now().UTC().Format(time.DateOnly))
	meshes := Table{
		Title:  "The mesh",
		Header: []string{"workers", "requests", "in time, %", "prefix hits, % of prompt tokens (ideal)", "decisions a second and router", "NATS messages a second: load, blocks, routers", "delivered a second", "blocks that a router knows", "index", "wall time", "memory of the process"},
		Note:   "Hits are ideal if no prefix is computed twice. Counts are of the time in which requests came, after a warm-up. Messages are counted where they are published, and each goes to every router. Wall time and memory: " + machine + "; the first three meshes ran beside each other, so that memory is of several. With `--long`, the last row is a million requests, alone.",
	}
	cores := Table{
		Title:  "One core of a router",
		Header: []string{"workers", "blocks known", "decisions a second", "decision p50", "p99", "load report", "block of an event"},
		Note:   "Processor time: " + machine + ". A decision is about a prompt of 2,048 tokens, of which workers hold some, while as many requests run as there are workers.",
	}
	for _, s := range all {
		hits, ideal := s.hits()
		messages, decisions := s.rates()
		meshes.Rows = append(meshes.Rows, []string{
			fmt.Sprint(s.workers), fmt.Sprint(s.figures.Requests), fmt.Sprintf("%.1f", 100*s.figures.SLOAttainment), fmt.Sprintf("%.1f (%.1f)", 100*hits, 100*ideal),
			report.Digits(decisions), fmt.Sprintf("%.0f, %.0f, %.0f", float64(s.signals.LoadReports)/s.seconds, float64(s.signals.BlockEvents)/s.seconds, float64(s.signals.RouterReports)/s.seconds),
			fmt.Sprintf("%.0f", messages*scaleRouters), fmt.Sprint(s.blocks), fmt.Sprintf("%.0f MB", float64(s.blocks)*perBlock/1e6),
			fmt.Sprintf("%.0f s", s.wall.Seconds()), fmt.Sprintf("%.1f GB", float64(s.memory)/1e9),
		})
	}
	for _, c := range timed {
		cores.Rows = append(cores.Rows, []string{
			fmt.Sprint(c.Workers), fmt.Sprint(c.PrefixBlocks), report.Digits(c.DecisionsPerS), fmt.Sprintf("%.0f µs", c.DecisionUsP50), fmt.Sprintf("%.0f µs", c.DecisionUsP99),
			fmt.Sprintf("%.2f µs", c.ReportUs), fmt.Sprintf("%.2f µs", blockUs(c)),
		})
	}
	largest := all[0]
	i := slices.IndexFunc(timed, func(c *router.Result) bool { return c.Workers >= largest.workers })
	if i < 0 {
		i = len(timed) - 1
	}
	own, told := largest.load(timed[i])
	hits, ideal := largest.hits()
	messages, decisions := largest.rates()
	return &Result{
		Intro:  []string{fmt.Sprintf("H200s with a model of 8 billion parameters, three of eight for prefill, %d routers; %d requests a second for each worker, with prompts of about 1,000 tokens that begin with one of %d prefixes of %d.", scaleRouters, scaleRate, scalePrefixes, scalePrefix)},
		Tables: []Table{meshes, cores},
		Notes: []string{
			fmt.Sprintf("Beside %d workers, each router decides %s times a second. One core could decide %s times: decisions take %.1f%% of it.", largest.workers, report.Digits(decisions), report.Digits(timed[i].DecisionsPerS), 100*own),
			fmt.Sprintf("What all workers and routers tell takes another %.1f%% of a core of each router. That part does not shrink with more routers: at about %s workers it is a whole core.", 100*told, report.Digits(float64(largest.workers)/max(told, 1e-9))),
			fmt.Sprintf("The index takes %.0f bytes a block on average, where each is at two workers.", perBlock),
			"Tokens that a router relays are not in it: [benchmarks.md](benchmarks.md#the-router) has those. [scale.md](scale.md) says what comes after.",
		},
		Ratios: []Ratio{
			{Name: "prefix hits over the ideal", Value: hits / ideal, Noise: 0.05},
			{Name: "NATS messages a second and worker", Value: messages / float64(largest.workers), Noise: 0.1 * messages / float64(largest.workers)},
		},
	}
}

// blockUs is what the routing core takes for a block that it is told of, microseconds.
func blockUs(c *router.Result) float64 { return 1000 * c.IndexMs / float64(max(c.PrefixBlocks, 1)) }

// load is the share of a core of each router that its own decisions take, and what it is told.
func (s scaled) load(c *router.Result) (own, told float64) {
	_, decisions := s.rates()
	const us = 1e-6
	own = decisions / c.DecisionsPerS
	told = (float64(s.signals.LoadReports+s.signals.RouterReports)*c.ReportUs + float64(s.signals.Blocks)*blockUs(c)) * us / s.seconds
	return own, told
}
