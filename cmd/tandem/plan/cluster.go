package plan

import (
	"fmt"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/worker"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/simulate"
)

// Size is how many workers of each kind there are. Without Prefill, decode workers do both
// phases.
type Size struct {
	Prefill int `json:"prefill_workers"`
	Decode  int `json:"decode_workers"`
}

// Workers is how many there are in all.
func (s Size) Workers() int { return s.Prefill + s.Decode }

// String is such as "2 prefill and 3 decode workers".
func (s Size) String() string {
	if s.Prefill == 0 {
		return report.Count(s.Decode, "worker", "workers") + " that " + map[bool]string{true: "does", false: "do"}[s.Decode == 1] + " both phases"
	}
	return fmt.Sprintf("%d prefill and %s", s.Prefill, report.Count(s.Decode, "decode worker", "decode workers"))
}

// pools are a worker of each kind, which all others are like.
type pools struct {
	prefill, decode simulate.Worker
	acceptance      float64 // of draft tokens
}

// newPools takes the first worker of each role from the cluster. Where it has no prefill
// worker, that is like its decode workers.
func newPools(config simulate.Config) pools {
	p := pools{acceptance: config.Acceptance}
	for _, w := range config.Workers {
		switch {
		case w.Role == controlv1.Role_ROLE_PREFILL && p.prefill.Profile == nil:
			p.prefill = *w
		case w.Role == controlv1.Role_ROLE_DECODE && p.decode.Profile == nil:
			p.decode = *w
		}
	}
	if p.prefill.Profile == nil {
		p.prefill = p.decode
		p.prefill.Role, p.prefill.ChunkTokens = controlv1.Role_ROLE_PREFILL, worker.DefaultPrefillChunkTokens
	}
	return p
}

// workers of a size, each on a host of its own.
func (p pools) workers(size Size) []*simulate.Worker {
	var all []*simulate.Worker
	add := func(like simulate.Worker, name string, count int) {
		for i := range count {
			w := like
			w.ID = fmt.Sprintf("%s-%d", name, i+1)
			w.Host, w.Pool, w.Down = w.ID, name, false
			all = append(all, &w)
		}
	}
	add(p.prefill, "prefill", size.Prefill)
	add(p.decode, "decode", size.Decode)
	return all
}

// cluster is workers of a size with the load of the question.
func (p *planner) cluster(size Size) simulatedtarget.Server {
	q := p.question
	mode := q.Mode
	if size.Prefill == 0 {
		mode = inferencev1.Mode_MODE_AGGREGATED
	}
	return simulatedtarget.Server{
		Scenario: q.Cluster, Address: size.String(), Seed: q.Load.Workload.Seed, Mode: mode, TTFT: q.TTFT, TPOT: q.TPOT,
		Change: func(c *simulate.Config) { c.Workers = p.pools.workers(size) },
	}
}
