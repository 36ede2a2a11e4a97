package swarmtest

import (
	"slices"
)

// Shrink makes a script smaller as long as it still fails: it leaves out requests, faults and
// workers, and makes simpler what is left. It asks fails at most tries times.
func Shrink(s *Script, tries int, fails func(*Script) bool) *Script {
	k := &shrinker{best: s, tries: tries, fails: fails}
	for before := -1; before != k.better && k.tries > 0; {
		before = k.better
		k.leaveOut(func(s *Script) int { return len(s.Requests) }, func(s *Script, from, to int) { s.Requests = slices.Delete(s.Requests, from, to) })
		k.leaveOut(func(s *Script) int { return len(s.Faults) }, func(s *Script, from, to int) { s.Faults = slices.Delete(s.Faults, from, to) })
		k.leaveOut(func(s *Script) int { return len(s.Workers) }, leaveOutWorkers)
		k.simplify()
	}
	return k.best
}

type shrinker struct {
	best   *Script
	better int // how often a smaller one was found
	tries  int
	fails  func(*Script) bool
}

// try keeps a changed copy of the best script if that fails too.
func (k *shrinker) try(change func(*Script)) bool {
	if k.tries <= 0 {
		return false
	}
	s := *k.best
	s.Workers, s.Requests, s.Faults = slices.Clone(s.Workers), slices.Clone(s.Requests), slices.Clone(s.Faults)
	change(&s)
	if slices.Equal(s.JSON(), k.best.JSON()) {
		return false
	}
	k.tries--
	if !k.fails(&s) {
		return false
	}
	k.best = &s
	k.better++
	return true
}

// leaveOut takes out what it can of a list: half of it at once, then less.
func (k *shrinker) leaveOut(length func(*Script) int, cut func(s *Script, from, to int)) {
	for size := length(k.best); size > 0; size /= 2 {
		for from := 0; from < length(k.best); {
			to := min(from+size, length(k.best))
			if !k.try(func(s *Script) { cut(s, from, to) }) {
				from = to
			}
		}
	}
}

// leaveOutWorkers leaves out the faults that name them too.
func leaveOutWorkers(s *Script, from, to int) {
	for _, w := range s.Workers[from:to] {
		s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { return f.Worker == w.ID })
	}
	s.Workers = slices.Delete(s.Workers, from, to)
}

// simplify changes one thing at a time.
func (k *shrinker) simplify() {
	for _, change := range []func(*Script){
		func(s *Script) { s.Routers = 1 },
		func(s *Script) { s.Mode = "aggregated" },
		func(s *Script) { s.Mode = "disaggregated" },
		func(s *Script) { s.LatencyMs, s.BytesPerS = 0.01, 0 },
		func(s *Script) { s.QueueLimit, s.TenantMost = 1024, 256 },
	} {
		k.try(change)
	}
	for i := range k.best.Requests {
		for _, change := range []func(*Request){
			func(r *Request) { r.Tenant, r.Salt, r.Priority = "", "", 0 },
			func(r *Request) { r.PatienceMs = 0 },
			func(r *Request) { r.Own, r.Shared = max(r.Own, 1), 0 },
			func(r *Request) { r.Own = (r.Own + 1) / 2 },
			func(r *Request) { r.Tokens = (r.Tokens + 1) / 2 },
		} {
			for k.try(func(s *Script) { change(&s.Requests[i]) }) {
			}
		}
	}
	for i := range k.best.Faults {
		for k.best.Faults[i].ForMs > 1 && k.try(func(s *Script) { s.Faults[i].ForMs /= 2 }) {
		}
	}
	for i := range k.best.Workers {
		k.try(func(s *Script) { s.Workers[i].Jitter, s.Workers[i].OutputShare = 0, 1 })
		k.try(func(s *Script) { s.Workers[i].Host = s.Workers[i].ID })
	}
}
