package evidence

import "context"

// live says how far a live mesh is from its simulation.
type live struct{}

func (live) Name() string  { return "live" }
func (live) Title() string { return "The live mesh beside its simulation" }

// Run measures nothing: a live mesh with a CPU engine needs a machine that does nothing else for
// some minutes, and its figures are of one machine. They stand in docs/benchmarks.md.
func (live) Run(context.Context, Options) (*Result, error) {
	return &Result{
		Intro: []string{"The figures of this page are worth what the simulation is worth. `tandem bench simulated --virtual` profiles an engine, measures a live mesh, and runs the same load on virtual time. Two cores of an Intel Xeon with AMX, `bench-200m`, one worker on one core, medians of two rounds, 2026-11-24:"},
		Tables: []Table{{
			Title: "Simulated against live", Command: "tandem bench simulated --virtual --pin --model bench-200m --profile 200m.json --load 0.7 --rounds 2 --duration 95s --warmup 5s --prompt-tokens 32 --output-tokens 8 --seed 5",
			Header: []string{"load", "", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"},
			Rows: [][]string{
				{"50%, 4.95 requests/s", "live, ms", "122", "451", "50.2", "104"},
				{"", "simulated", "−7.3%", "−1.0%", "−4.7%", "+8.9%"},
				{"70%, 6.58 requests/s", "live, ms", "172", "697", "70.8", "109"},
				{"", "simulated", "−3.4%", "+8.3%", "−0.8%", "+6.3%"},
			},
			Note: "Repeated on other days and machines it was within 13%, but for one TPOT p99 (18%) and for runs that other work disturbed. [benchmarks.md](benchmarks.md#simulation-and-replay) has all of them, and how to profile the engine first.",
		}},
	}, nil
}
