package routing

import (
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Two workers of one model name may have different weights, or compute with them in
// different ways, and then give different tokens. So a model is served in versions, which
// operators name in the policy. Without that a model has one: the one that other routers
// serve already, or else the one that most of its workers have when the router begins. It
// stays, whoever comes or goes: when no worker of it is left, no request is served until
// an operator says otherwise.

// servedVersion is a version of a model that requests may be given.
type servedVersion struct {
	version Version // unless pin says
	weight  int
	pin     *pin // nil: the policy names the version in full
}

func (o *servedVersion) current() Version {
	if o.pin != nil {
		return o.pin.version
	}
	return o.version
}

// serveVersions takes in what a policy says of versions. What it leaves as it was
// stays pinned.
func (rt *Router) serveVersions(policy *controlv1.Policy) {
	before := rt.served
	rt.served = make(map[string][]*servedVersion, len(rt.config.Models))
	for _, m := range rt.config.Models {
		pinned := func(digest string) *pin {
			for _, o := range before[m.Name] {
				if o.pin != nil && o.pin.digest == digest {
					return o.pin
				}
			}
			return &pin{digest: digest}
		}
		var served []*servedVersion
		for _, v := range policy.GetVersions() {
			if v.GetModel() != m.Name {
				continue
			}
			o := &servedVersion{version: Version{v.GetModelDigest(), v.GetArithmeticClass()}, weight: 1}
			if v.Weight != nil {
				o.weight = int(v.GetWeight())
			}
			if o.version.Class == "" {
				o.pin = pinned(o.version.Digest)
			}
			served = append(served, o)
		}
		if len(served) == 0 {
			served = []*servedVersion{{weight: 1, pin: pinned(m.Digest)}}
		}
		rt.served[m.Name] = served
	}
	rt.pinsDue, rt.grouped = rt.now, nil
}

// Served are the versions of a model that new requests may be given, as far as they
// are known.
func (rt *Router) Served(model string) []Version {
	var out []Version
	for _, o := range rt.served[model] {
		if v := o.current(); v != (Version{}) {
			out = append(out, v)
		}
	}
	return out
}

func (rt *Router) serves(model string, v Version) bool {
	return v != (Version{}) && slices.ContainsFunc(rt.served[model], func(o *servedVersion) bool { return o.current() == v })
}

// takes reports whether a worker gets new requests for a model: it is connected, does not drain, and is of
// a version that is served, or none is known yet.
func (rt *Router) takes(w *worker, m Model) bool {
	if !w.connected || w.draining || !w.of(m) {
		return false
	}
	known := false
	for _, o := range rt.served[m.Name] {
		v := o.current()
		if v == w.version {
			return true
		}
		known = known || v != (Version{})
	}
	return !known
}

// assign gives a request the version that it runs in, which stays once it is sent. It
// reports whether it is too early to say: workers are about to answer.
func (rt *Router) assign(now time.Time, e *entry) (early bool) {
	r := &e.request
	if r.Version != (Version{}) {
		e.version = r.Version
		return false
	}
	served, total := rt.served[r.Model], 0
	for _, o := range served {
		if p := o.pin; p != nil && !p.fixed && p.awaited && !p.since.IsZero() && now.Before(p.since.Add(rt.config.NoWorkerGrace)) {
			return true
		}
		if o.current() != (Version{}) {
			total += o.weight
		}
	}
	if rt.serves(r.Model, e.version) {
		return false
	}
	e.version = Version{}
	draw := 0
	if len(served) > 1 && total > 0 {
		draw = rt.random.IntN(total)
	}
	for _, o := range served {
		if o.current() == (Version{}) {
			continue
		}
		if draw -= o.weight; draw < 0 {
			e.version = o.current()
			break
		}
	}
	return false
}

// versionSent fixes a version that was still open: a request was sent to workers of it.
func (rt *Router) versionSent(model string, v Version) {
	for _, o := range rt.served[model] {
		if p := o.pin; p != nil && !p.fixed && p.version == v {
			rt.fixPin(Model{Name: model}, p)
			rt.pinsDue = rt.now
		}
	}
}

// Versions are those of all models, with their weights, in the order of Config.Models.
func (rt *Router) Versions() []*controlv1.ModelVersion {
	var out []*controlv1.ModelVersion
	for _, m := range rt.config.Models {
		for _, o := range rt.served[m.Name] {
			if v := o.current(); v != (Version{}) {
				weight := uint32(o.weight)
				out = append(out, &controlv1.ModelVersion{Model: m.Name, ModelDigest: v.Digest, ArithmeticClass: v.Class, Weight: &weight})
			}
		}
	}
	return out
}
