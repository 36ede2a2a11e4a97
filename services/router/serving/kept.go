package serving

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/records"
)

// requestName identifies a request: two owners may use the same id.
type requestName struct{ owner, id string }

func (r *request) name() requestName { return requestName{r.owner, r.id} }

// freeID returns id, or if a request or a record of the owner has it, an id that begins like
// it. The caller holds mu.
func (s *Requests) freeID(owner, id string) string {
	for free := id; ; {
		if s.byID[requestName{owner, free}] == nil && !s.deps.Records.Has(owner, free) {
			return free
		}
		free = rpc.Suffixed(id, "-"+rpc.NewID()[:8])
	}
}

// keep keeps a finished request for as long as it can be resumed. One that was refused has nothing to
// resume.
func (s *Requests) keep(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.resumable == 0 || !r.accepted {
		s.drop(r)
		return
	}
	r.until = time.Now().Add(r.resumable)
	s.kept = append(s.kept, r)
	r.events.keep(true)
	if s.keepsMore() {
		s.forgetSome()
	}
}

// keepsMore reports whether more is kept than may be. The caller holds mu.
func (s *Requests) keepsMore() bool {
	return len(s.kept) > s.config.KeptLogs || len(s.kept) > 0 && s.memory.kept.Load() > int64(s.config.KeptMemory)
}

// forgetSome forgets what is kept too much: each time the oldest request of the tenant that has the
// largest part of what may be kept. The caller holds mu.
func (s *Requests) forgetSome() {
	part := func(r *request) float64 {
		return 1/float64(s.config.KeptLogs) + float64(r.events.bytes.Load())/float64(s.config.KeptMemory)
	}
	parts := make(map[string]float64)
	for _, r := range s.kept {
		parts[r.tenant] += part(r)
	}
	for s.keepsMore() {
		oldest := 0
		for i, r := range s.kept {
			if parts[r.tenant] > parts[s.kept[oldest].tenant] {
				oldest = i
			}
		}
		r := s.kept[oldest]
		parts[r.tenant] -= part(r)
		s.drop(r)
		s.kept = slices.Delete(s.kept, oldest, oldest+1)
		s.metrics.forgotten.Inc()
	}
}

// Forget forgets finished requests whose time is over.
func (s *Requests) Forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(r *request) bool {
		over := !now.Before(r.until)
		if over {
			s.drop(r)
		}
		return over
	})
}

// drop forgets a finished request. The caller holds mu.
func (s *Requests) drop(r *request) {
	delete(s.byID, r.name())
	r.forget()
}

// find attaches a reader to an owner's request, if that can be resumed and the secret is
// right. The reader must detach. The error is a status.
func (s *Requests) find(owner, id, secret string) (*request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, hash := s.byID[requestName{owner, id}], records.SecretHash{}
	if r != nil && r.resumable > 0 {
		hash = r.hash
	}
	switch {
	case !hash.Proves(secret):
		return nil, clienterr.NotHere(id, 0, 0)
	case !r.attach():
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonTooManyReaders, fmt.Sprintf("%d clients are already reading this request; retry when one has ended", maxReaders), time.Second)
	}
	return r, nil
}
