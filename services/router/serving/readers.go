package serving

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// maxReaders is how many clients may read one request's answer at a time.
const maxReaders = 8

// attach adds a reader. It returns false if there are maxReaders already.
func (r *request) attach() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readers >= maxReaders {
		return false
	}
	r.readers++
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
	return true
}

// wasRead is called when the request has ended and its last reader is gone. The caller holds mu.
func (r *request) wasRead() {
	select {
	case <-r.read:
	default:
		close(r.read)
	}
	if r.lags {
		r.lags = false
		r.requests.deps.Dispatcher.Handle(routing.Read{Tenant: r.tenant})
	}
	if r.forgotten || r.resumable == 0 {
		r.events.release()
	}
}

// forget is called when no client can join the request any more.
func (r *request) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgotten = true
	if r.readers == 0 {
		r.events.release()
		return
	}
	r.events.keep(false)
}

// detach removes a reader. Without readers the request runs on for only as long as it
// can be resumed.
func (r *request) detach(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
	switch {
	case r.readers > 0:
	case r.ended:
		r.wasRead()
	case r.resumable == 0:
		r.events.release()
		r.abort(why)
	default:
		r.expiry = time.AfterFunc(r.resumable, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.readers == 0 {
				r.abort(rpc.Error(codes.Canceled, api.ReasonClientGone, "the client did not come back in time", 0))
			}
		})
	}
}
