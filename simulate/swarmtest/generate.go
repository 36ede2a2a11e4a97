package swarmtest

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// draw is what is drawn of a seed.
type draw struct{ *rand.Rand }

// between is a whole number from least to most.
func (d draw) between(least, most int) int { return least + d.IntN(most-least+1) }

// skewed is from least to most, mostly near least.
func (d draw) skewed(least, most float64) float64 {
	return least * math.Exp2(math.Log2(most/least)*d.Float64())
}

func (d draw) chance(p float64) bool { return d.Float64() < p }

func pick[T any](d draw, of ...T) T { return of[d.IntN(len(of))] }

// Generate makes the script of a seed.
func Generate(seed uint64) *Script {
	d := draw{rand.New(rand.NewPCG(seed, 0x5a))}
	s := &Script{
		Seed: seed, Routers: pick(d, 1, 1, 2, 3), Mode: pick(d, "auto", "auto", "disaggregated", "aggregated"),
		BlockTokens: pick(d, 4, 8, 16), QueueLimit: pick(d, 1024, 1024, 8), TenantMost: pick(d, 256, 256, 4), HedgeShare: pick(d, 0.02, 0.3, 1),
		LatencyMs: d.skewed(0.01, 20), BytesPerS: pick(d, 0, d.skewed(1e5, 1e9)),
	}
	prefill, decode := d.between(0, mostWorkers), d.between(1, mostWorkers)
	if s.Mode == "disaggregated" {
		prefill = max(prefill, 1)
	}
	if s.Policy = pick(d, routing.Policies()...); s.Policy == "disaggregated" && prefill == 0 {
		s.Policy = routing.DefaultPolicy
	}
	longest := pick(d, 60, 200, 600) // of a prompt and its answer
	for i := range prefill + decode {
		w := s.worker(d, longest)
		w.ID = fmt.Sprintf("d-%d", i-prefill+1)
		if w.Prefill = i < prefill; w.Prefill {
			w.ID = fmt.Sprintf("p-%d", i+1)
		}
		w.Host = w.ID
		if d.chance(0.2) {
			w.Host = "shared"
		}
		s.Workers = append(s.Workers, w)
	}
	for range d.between(1, pick(d, 10, 60, 200)) {
		s.Requests = append(s.Requests, s.request(d, longest))
	}
	slices.SortStableFunc(s.Requests, func(a, b Request) int { return cmp.Compare(a.AtMs, b.AtMs) })
	if d.chance(0.9) {
		for range d.between(0, pick(d, 2, 6, 15)) {
			s.Faults = append(s.Faults, s.fault(d))
		}
	}
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return cmp.Compare(a.AtMs, b.AtMs) })
	return s
}

const (
	// mostWorkers is of each role.
	mostWorkers = 4
	// mostChunks is for how many of the largest chunks a sender has credit.
	mostChunks = 10
)

func (s *Script) worker(d draw, longest int) Worker {
	least := kvcache.BlocksFor(longest, s.BlockTokens) + 1 // a whole sequence fits
	chunk := s.BlockTokens * d.between(1, 8)
	kv := int(d.skewed(1000, 1e6))
	lease := pick(d, 10000.0, 10000, 1000)
	if s.BytesPerS > 0 {
		// A third of the lease suffices for what all senders have credit for: a message of
		// one is not late because of the KV before it.
		kv = min(kv, int(s.BytesPerS*lease/1000)/(3*mostWorkers*mostChunks))
	}
	return Worker{
		Credit: kv * d.between(1, mostChunks), KVChunk: kv,
		Blocks: int(float64(least) * d.skewed(1, 20)), BatchTokens: max(chunk, d.between(8, 256)), Sequences: d.between(1, 32), Chunk: chunk, Waiting: pick(d, 256, 16, 2),
		OutputShare: pick(d, 1, 1, 0.5, 0.1), LeaseMs: lease, BaseMs: d.skewed(0.5, 50), Jitter: pick(d, 0, 0, 0.3),
	}
}

// lasts is how long clients send.
const lasts = 20000

func (s *Script) request(d draw, longest int) Request {
	r := Request{
		AtMs: float64(d.IntN(lasts)), Family: d.IntN(4), Seed: d.Uint64() >> 12, Tokens: d.between(1, longest/2),
		Tenant: pick(d, "", "a", "b"), Priority: pick(d, int32(0), 0, 0, 1, -1), Salt: pick(d, "", "", "", "salt"),
	}
	if d.chance(0.3) { // a burst
		r.AtMs = float64(d.IntN(4) * lasts / 4)
	}
	prompt := d.between(1, longest-r.Tokens)
	if d.chance(0.6) {
		r.Shared = d.between(0, prompt)
	}
	r.Own = prompt - r.Shared
	if d.chance(0.15) {
		r.PatienceMs = d.skewed(0.1, 5000)
	}
	return r
}

func (s *Script) fault(d draw) Fault {
	f := Fault{AtMs: float64(d.IntN(lasts)), Worker: pick(d, s.Workers...).ID, ForMs: d.skewed(1, 30000)}
	switch f.Kind = pick(d, kill, kill, drain, slow, cut, cut, fail, corrupt, mute, etcd); f.Kind {
	case slow:
		f.Factor, f.Unmeasured = d.skewed(1.5, 200), d.chance(0.3)
	case cut:
		hosts := []string{}
		for _, w := range s.Workers {
			hosts = append(hosts, w.Host)
		}
		for i := range s.Routers {
			hosts = append(hosts, fmt.Sprintf("router-%d", i+1))
		}
		f.Worker, f.A, f.B = "", pick(d, hosts...), pick(d, hosts...)
	case fail, corrupt:
		f.ForMs = 0
	case etcd:
		f.Worker = ""
	}
	return f
}
