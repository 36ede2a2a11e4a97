package routing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// What operators are shown of a decision takes less than 4 KB, however many workers there are.
const (
	// shownMost is of how many workers of each role all is shown; the others are counted.
	shownMost = 8
	// countedMost is how many reasons those are counted by.
	countedMost = 8
	// reasonBytes bounds what is said of each.
	reasonBytes = 120
	// costlier and notLookedAt are the reasons of workers that nothing spoke against.
	costlier    = "costs more"
	notLookedAt = "not looked at"
)

// shown is what is kept of the candidates: of each role those chosen, then those that could be,
// the cheapest first, then the others, and how many are left of each kind.
func (s *search) shown(decodes *candidates, decode *candidate, prefills *candidates, prefill *candidate) (list []*controlv1.Candidate, others []*controlv1.OtherCandidates) {
	if decode != nil && decode.worker.takesAggregated {
		decode, prefills, prefill = nil, s.aggregatedPrefills, decode
	}
	for _, of := range [...]struct {
		role   controlv1.Role
		from   *candidates
		chosen *candidate
	}{{controlv1.Role_ROLE_DECODE, decodes, decode}, {controlv1.Role_ROLE_PREFILL, prefills, prefill}} {
		if of.from == nil {
			continue
		}
		first, rest := foremost(of.from.all, of.chosen)
		for _, c := range first {
			list = append(list, c.shown(of.role))
		}
		others = append(others, counted(of.role, rest, of.from.skipped)...)
	}
	return list, others
}

// foremost parts candidates into the first shownMost, as shown orders them, and the others.
func foremost(all []candidate, chosen *candidate) (first, rest []*candidate) {
	first = make([]*candidate, 0, shownMost+1)
	var picked *worker
	if chosen != nil {
		picked = chosen.worker
	}
	rank := func(c *candidate) int {
		switch {
		case c.worker == picked:
			return 0
		case c.reason == "":
			return 1
		}
		return 2
	}
	before := func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.totalMs, b.totalMs), byID(a.worker, b.worker))
	}
	for i := range all {
		c := &all[i]
		if c.worker == picked {
			c = chosen // what it costs as it was chosen
		}
		if len(first) == shownMost && before(first[shownMost-1], c) < 0 {
			rest = append(rest, c)
			continue
		}
		at, _ := slices.BinarySearchFunc(first, c, before)
		if first = slices.Insert(first, at, c); len(first) > shownMost {
			rest = append(rest, first[shownMost])
			first = first[:shownMost]
		}
	}
	return first, rest
}

func (c *candidate) shown(role controlv1.Role) *controlv1.Candidate {
	return &controlv1.Candidate{
		WorkerId: c.worker.ref.ID, Role: role, Excluded: short(c.reason, reasonBytes),
		QueueMs: c.queueMs, PrefillMs: c.prefillMs, TpotMs: c.tpotMs, CostMs: c.totalMs,
		CachedTokens: uint32(max(c.cached, 0)), FetchTokens: uint32(c.fetched), InFlight: uint32(c.worker.owned), TransferMs: c.transferMs, TransferBytesPerSecond: c.bytesPerMs * 1000,
	}
}

// short is the beginning of a text, of so many bytes at most.
func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// counted counts candidates by what spoke against them, most first.
func counted(role controlv1.Role, rest []*candidate, skipped int) (out []*controlv1.OtherCandidates) {
	add := func(reason string, n int) {
		i := slices.IndexFunc(out, func(o *controlv1.OtherCandidates) bool { return o.GetReason() == reason })
		if i < 0 {
			i, out = len(out), append(out, &controlv1.OtherCandidates{Role: role, Reason: reason})
		}
		out[i].Workers += uint32(n)
	}
	for _, c := range rest {
		kind, _, _ := strings.Cut(c.reason, ":")
		add(cmp.Or(short(kind, reasonBytes), costlier), 1)
	}
	if skipped > 0 {
		add(notLookedAt, skipped)
	}
	slices.SortFunc(out, func(a, b *controlv1.OtherCandidates) int {
		return cmp.Or(cmp.Compare(b.GetWorkers(), a.GetWorkers()), strings.Compare(a.GetReason(), b.GetReason()))
	})
	if len(out) > countedMost {
		last := out[countedMost-1]
		last.Reason = "other reasons"
		for _, o := range out[countedMost:] {
			last.Workers += o.GetWorkers()
		}
		out = out[:countedMost]
	}
	return out
}

// explain says for people why a request runs on one worker or on two, and whether mode
// auto would have had it on two, had there been a way for its KV.
func (rt *Router) explain(s *search, decode, prefill *candidate, prefills *candidates) (reason string, fallback bool) {
	r := s.request
	if o := s.runnerUp; o != nil && prefill == nil {
		return fmt.Sprintf("one worker does all: the first token predicted %.1f ms after the decision, and %.1f ms with the prompt on %s",
			decode.firstMs, o.firstMs, o.worker.ref.ID), false
	} else if o != nil {
		reason = fmt.Sprintf("prefill on %s: the first token predicted %.1f ms after the decision, of which %.1f ms queue, and %.1f ms on %s alone",
			prefill.worker.ref.ID, prefill.firstMs, prefill.queueMs, o.firstMs, o.worker.ref.ID)
		switch {
		case s.allPromptsOnPrefill:
			reason += "; all requests are disaggregated at present, by what is in time and what is expected to be"
		case o.delaysOthersMs > 0:
			reason += fmt.Sprintf(", which would delay others there by %.1f ms in all", o.delaysOthersMs)
		case o.firstMs < prefill.firstMs:
			reason += ", which is too near to tell apart"
		}
		return reason, false
	}
	mode, whose := rt.mode(r), "the request asks for "
	if mode != r.Mode {
		whose = "the policy is "
	}
	switch failed, why, unreached := r.unreached(); {
	case mode == inferencev1.Mode_MODE_AGGREGATED:
		return whose + "aggregated mode", false
	case prefills == nil && unreached:
		return fmt.Sprintf("one worker does all because KV could not be sent from %s: %s", failed, why), true
	case prefills == nil && s.best == nil:
		return "one worker does all, as there is no decode worker: " + s.lacksDecode, false
	case prefills == nil && s.best.uncached < rt.threshold():
		return fmt.Sprintf("%d uncached tokens on %s are fewer than %d: a transfer costs more than it saves", s.best.uncached, s.best.worker.ref.ID, rt.threshold()), false
	case prefills == nil && s.use == allAggregated:
		return "one worker does all: all requests are aggregated at present, by what is in time and what is expected to be", false
	case prefill == nil && prefills.broken != "":
		return fmt.Sprintf("one worker does all because KV cannot be sent from %s at the moment: %s", prefills.path, prefills.broken), true
	case prefill == nil:
		return "no prefill worker: " + prefills.reason, true
	}
	return whose + "disaggregated mode", false
}
