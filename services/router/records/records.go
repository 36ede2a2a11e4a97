package records

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
)

// Kept is how many requests Explain knows, as control.proto states it, and keptDecisions how
// many attempts of each.
const (
	Kept          = 4096
	keptDecisions = 4
)

// Ring is how the last requests were routed. It is safe for concurrent use.
type Ring struct {
	mu   sync.Mutex
	byID map[key]*Record
	own  map[owned][]*Record // the same ones, by who may see them
	ring []key
	next int
}

// key names a record: two owners may have requests of one id.
type key struct {
	owner string // the tenant that may see it; empty: who has the secret
	id    string
}

// owned names the records of one call, whose secret they have in common.
type owned struct {
	owner  string
	secret SecretHash
}

// Record is how one request was routed. It is safe for concurrent use.
type Record struct {
	records *Ring
	secret  SecretHash                 // that its caller has
	value   *controlv1.ExplainResponse // under records.mu
	dropped bool                       // nobody can ask for it any more, though it may still run; under records.mu
	tokens  int                        // generated; as endedAt, set when it ended well
	endedAt time.Time
}

// New returns a ring without records.
func New() *Ring {
	return &Ring{byID: make(map[key]*Record), own: make(map[owned][]*Record), ring: make([]key, Kept)}
}

// Add begins the record of a request, whose id no record of this owner may have.
func (s *Ring) Add(owner, id string, secret SecretHash, arrived time.Time) *Record {
	r := &Record{records: s, secret: secret, value: &controlv1.ExplainResponse{RequestId: id, Arrived: timestamppb.New(arrived)}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if oldest := s.byID[s.ring[s.next]]; oldest != nil {
		oldest.drop()
		call := owned{s.ring[s.next].owner, oldest.secret}
		if s.own[call] = slices.DeleteFunc(s.own[call], func(r *Record) bool { return r == oldest }); len(s.own[call]) == 0 {
			delete(s.own, call)
		}
	}
	delete(s.byID, s.ring[s.next])
	s.ring[s.next] = key{owner, id}
	s.next = (s.next + 1) % len(s.ring)
	s.byID[key{owner, id}] = r
	s.own[owned{owner, secret}] = append(s.own[owned{owner, secret}], r)
	return r
}

// Has reports whether there is a record of a request.
func (s *Ring) Has(owner, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[key{owner, id}] != nil
}

// GetOwn is Get among the requests of an owner that have a secret. Its time tells nothing of others.
func (s *Ring) GetOwn(owner, id, secret string) (record *controlv1.ExplainResponse, matches int) {
	if len(secret) > maxSecretBytes {
		return nil, 0
	}
	call := owned{owner, HashOf(secret)}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.own[call]
	if called := s.byID[key{owner, id}]; called != nil && !slices.Contains(own, called) {
		return nil, 0 // no other is meant
	}
	return get(id, slices.Values(own))
}

// Get returns a copy of the record of the request that is called id, of the last one if several owners
// have such, or where there is none, of the only one whose id begins so; nil if there is none or, with
// matches above 1, if there are several.
func (s *Ring) Get(id string) (record *controlv1.ExplainResponse, matches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return get(id, maps.Values(s.byID))
}

// GetExact returns a copy of the record of an owner's request with this very id; nil if there is none.
func (s *Ring) GetExact(owner, id string) *controlv1.ExplainResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[key{owner, id}]; r != nil {
		return proto.CloneOf(r.value)
	}
	return nil
}

// get is Get among some records. Ring.mu is held.
func get(id string, among iter.Seq[*Record]) (record *controlv1.ExplainResponse, matches int) {
	if id == "" {
		return nil, 0
	}
	var found, called *Record // which has the id: no other is meant
	for r := range among {
		switch known := r.value.GetRequestId(); {
		case known == id && (called == nil || called.value.GetArrived().AsTime().Before(r.value.GetArrived().AsTime())):
			called = r
		case strings.HasPrefix(known, id):
			found = r
			matches++
		}
	}
	if called != nil {
		found, matches = called, 1
	}
	if matches != 1 {
		return nil, matches
	}
	return proto.CloneOf(found.value), 1
}

// Decided adds a decision, which the record owns from then on.
func (r *Record) Decided(d *controlv1.Decision) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	if n := len(r.value.Decisions); n >= keptDecisions {
		r.value.Decisions = slices.Delete(r.value.Decisions, 0, n-keptDecisions+1)
	}
	r.value.Decisions = append(r.value.Decisions, d)
	if r.dropped {
		r.drop()
	}
}

// drop lets go of most of a record that is in the ring no more: its request may run for long.
// records.mu is held.
func (r *Record) drop() {
	r.dropped = true
	for _, d := range r.value.Decisions {
		d.Candidates, d.Others = nil, nil
	}
}

// Failed adds to a decision, which was given to Decided, why its attempt failed.
func (r *Record) Failed(of *controlv1.Decision, failures []routing.Failure, err error) {
	ids := make([]string, len(failures))
	for i, f := range failures {
		ids[i] = f.Worker.ID
		if f.Unreached != (routing.Ref{}) {
			ids[i] += " to " + f.Unreached.ID
		}
	}
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	of.Failure = strings.Join(ids, ", ") + ": " + rpc.CodeName(status.Code(err)) + ": " + status.Convert(err).Message()
}

// Lost adds to a decision that another attempt had its first token before.
func (r *Record) Lost(of *controlv1.Decision) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	of.Lost = true
}

// Ended adds how the request ended: with the status err, or if that is nil as f says, in the attempt of
// a decision.
func (r *Record) Ended(now time.Time, err error, f joining.Finish, in *controlv1.Decision) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.value.Status = rpc.CodeName(status.Code(err))
	r.value.Message = status.Convert(err).Message()
	r.value.Timings = f.Timings
	if err == nil {
		r.tokens, r.endedAt = int(f.Usage.GetCompletionTokens()), now
		if in != nil {
			in.Transport = f.Route.GetTransport()
		}
	}
}

// Finished is the kept requests that ended well, since a time.
func (s *Ring) Finished(since time.Time) []latencybudget.Request {
	type kept struct {
		key
		timings *inferencev1.Timings // not changed any more
		tokens  int
	}
	s.mu.Lock()
	all := make([]kept, 0, len(s.byID))
	for known, r := range s.byID {
		if !r.endedAt.IsZero() && !r.endedAt.Before(since) {
			all = append(all, kept{known, r.value.Timings, r.tokens})
		}
	}
	s.mu.Unlock()
	out := make([]latencybudget.Request, len(all))
	for i, r := range all {
		out[i] = latencybudget.Request{Owner: r.owner, ID: r.id, Spent: latencybudget.SpentOf(r.timings, r.tokens)}
	}
	return out
}
