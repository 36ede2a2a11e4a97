package router

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// Bounds of what Explain knows, as control.proto states them: requests, tries of
// each and workers looked at in each try.
const (
	keptRecords    = 4096
	keptDecisions  = 4
	keptCandidates = 64
)

// records is how the last requests were routed: a ring.
type records struct {
	mu   sync.Mutex
	byID map[string]*record
	ring []string
	next int
}

// record is how one request was routed.
type record struct {
	records *records
	value   *controlv1.ExplainResponse // under records.mu
	tokens  int                        // generated; as endedAt, set when it ended well
	endedAt time.Time
}

func newRecords() *records {
	return &records{byID: make(map[string]*record), ring: make([]string, keptRecords)}
}

func (s *records) add(id string, arrived time.Time) *record {
	r := &record{records: s, value: &controlv1.ExplainResponse{RequestId: id, Arrived: timestamppb.New(arrived)}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[id] == nil {
		delete(s.byID, s.ring[s.next])
		s.ring[s.next] = id
		s.next = (s.next + 1) % len(s.ring)
	}
	s.byID[id] = r
	return r
}

// get returns a copy of a request's record, nil if there is none.
func (s *records) get(id string) *controlv1.ExplainResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[id]; r != nil {
		return proto.CloneOf(r.value)
	}
	return nil
}

func (r *record) decided(d *controlv1.Decision) {
	d.Candidates = foremost(d)
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	if n := len(r.value.Decisions); n >= keptDecisions {
		r.value.Decisions = slices.Delete(r.value.Decisions, 0, n-keptDecisions+1)
	}
	r.value.Decisions = append(r.value.Decisions, d)
}

// foremost is the candidates of a decision that are worth keeping, in their
// order: those chosen, then those that could be, the cheapest first.
func foremost(d *controlv1.Decision) []*controlv1.Candidate {
	if len(d.GetCandidates()) <= keptCandidates {
		return d.GetCandidates()
	}
	rank := func(c *controlv1.Candidate) int {
		switch {
		case c.GetWorkerId() == d.GetPrefill() || c.GetWorkerId() == d.GetDecode():
			return 0
		case c.GetExcluded() == "":
			return 1
		}
		return 2
	}
	best := slices.Clone(d.GetCandidates())
	slices.SortStableFunc(best, func(a, b *controlv1.Candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetCostMs(), b.GetCostMs()))
	})
	keep := make(map[*controlv1.Candidate]bool, keptCandidates)
	for _, c := range best[:keptCandidates] {
		keep[c] = true
	}
	out := make([]*controlv1.Candidate, 0, keptCandidates)
	for _, c := range d.GetCandidates() {
		if keep[c] {
			out = append(out, c)
		}
	}
	return out
}

func (r *record) failed(failures []fleet.Failure, err error) {
	ids := make([]string, len(failures))
	for i, f := range failures {
		ids[i] = f.Worker.ID
		if f.Unreached != (fleet.Ref{}) {
			ids[i] += " to " + f.Unreached.ID
		}
	}
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	if n := len(r.value.Decisions); n > 0 {
		s := status.Convert(err)
		r.value.Decisions[n-1].Failure = strings.Join(ids, ", ") + ": " + codeName(err) + ": " + s.Message()
	}
}

func (r *record) ended(now time.Time, err error, f joining.Finish) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.value.Status = codeName(err)
	r.value.Timings = f.Timings
	if err == nil {
		r.tokens, r.endedAt = int(f.Usage.GetCompletionTokens()), now
		if n := len(r.value.Decisions); n > 0 {
			r.value.Decisions[n-1].Transport = f.Route.GetTransport()
		}
	}
}

// finished is a request that ended well.
type finished struct {
	id    string
	spent *latency.Spent
}

// finished is the kept requests that ended well, since a time.
func (s *records) finished(since time.Time) []finished {
	type kept struct {
		id      string
		timings *inferencev1.Timings // not changed any more
		tokens  int
	}
	s.mu.Lock()
	all := make([]kept, 0, len(s.byID))
	for id, r := range s.byID {
		if !r.endedAt.IsZero() && !r.endedAt.Before(since) {
			all = append(all, kept{id, r.value.Timings, r.tokens})
		}
	}
	s.mu.Unlock()
	out := make([]finished, len(all))
	for i, r := range all {
		out[i] = finished{r.id, spentOf(r.timings, r.tokens)}
	}
	return out
}

// rank sorts the requests that have a latency by it, those that are equal by id.
func rank(requests []finished, by func(*latency.Spent) (time.Duration, bool)) []finished {
	var out []finished
	for _, r := range requests {
		if _, ok := by(r.spent); ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b finished) int {
		x, _ := by(a.spent)
		y, _ := by(b.spent)
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a.id, b.id))
	})
	return out
}
