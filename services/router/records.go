package router

import (
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// keptRecords is how many requests Explain knows.
const keptRecords = 4096

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
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.value.Decisions = append(r.value.Decisions, d)
}

func (r *record) failed(failures []fleet.Failure, err error) {
	ids := make([]string, len(failures))
	for i, f := range failures {
		ids[i] = f.Worker.ID
	}
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	if n := len(r.value.Decisions); n > 0 {
		s := status.Convert(err)
		r.value.Decisions[n-1].Failure = strings.Join(ids, ", ") + ": " + codeName(err) + ": " + s.Message()
	}
}

func (r *record) ended(err error, timings *inferencev1.Timings) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.value.Status = codeName(err)
	r.value.Timings = timings
}
