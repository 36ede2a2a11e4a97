package routing

import (
	"time"
)

// pin is a version that follows from the workers there are.
type pin struct {
	digest  string    // that the version has to have; empty: any
	version Version   // that most of those that have answered so far have; zero: none has
	since   time.Time // when a worker had first answered
	fixed   bool      // the version does not change any more
	awaited bool      // some workers that etcd lists have not answered yet
}

// pinVersions finds the versions that the workers decide, and whom that leaves out.
func (rt *Router) pinVersions(now time.Time) {
	rt.pinsDue, rt.grouped = time.Time{}, nil
	for _, m := range rt.config.Models {
		found := true
		for _, o := range rt.served[m.Name] {
			if o.pin != nil {
				rt.pinVersion(now, m, o.pin)
				found = found && o.pin.fixed
			}
		}
		if found {
			rt.reportForeign(m)
			rt.comparePeers(m)
		}
	}
}

// pinVersion looks for the version that most workers have, unless it was found before:
// then it stays, whoever comes or goes. What another router serves already counts more
// than any majority.
func (rt *Router) pinVersion(now time.Time, m Model, p *pin) {
	if p.fixed {
		return
	}
	votes := make(map[Version]int)
	for _, w := range rt.order {
		v := w.version
		if !w.isStore() && w.of(m) && v != (Version{}) && (p.digest == "" || v.Digest == p.digest) && !w.draining && w.connected {
			votes[v]++
		}
	}
	if v, ok := rt.peersVersion(m, votes); ok {
		p.version, p.awaited = v, false
		rt.fixPin(m, p)
		return
	}
	p.awaited = false
	for _, w := range rt.workers {
		p.awaited = p.awaited || !w.answered && w.connectError == "" && w.of(m) && !w.isStore()
	}
	best, ok := mostVotes(votes)
	if !ok {
		return // nobody is there: those to come decide
	}
	if p.since.IsZero() {
		p.since = now
	}
	p.version = best
	// Only the first pin of a model waits for workers that are about to answer.
	if rt.pinnedOnce[m.Name] || !now.Before(p.since.Add(rt.config.VersionWait)) {
		rt.fixPin(m, p)
		return
	}
	soonest(&rt.pinsDue, p.since.Add(rt.config.VersionWait))
	if p.awaited && now.Before(p.since.Add(rt.config.NoWorkerGrace)) {
		soonest(&rt.pinsDue, p.since.Add(rt.config.NoWorkerGrace))
	}
}

// mostVotes is the version with the most votes, of equals the lowest, so that all
// routers agree; false if nobody voted.
func mostVotes(votes map[Version]int) (best Version, ok bool) {
	for v, n := range votes {
		if !ok || n > votes[best] || n == votes[best] && compareVersions(v, best) < 0 {
			best, ok = v, true
		}
	}
	return best, ok
}

func (rt *Router) fixPin(m Model, p *pin) {
	p.fixed, rt.pinnedOnce[m.Name] = true, true
	rt.out = append(rt.out, Pinned{Model: m.Name, Version: p.version})
}
