// Package peers asks the mesh's other routers for a request that this one does not know, so
// that a client can resume it at any of them.
//
// The router imports it. A call starts a goroutine for each router that it asks, and waits
// for all of them.
package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// Bounds of what strangers may cause who ask for requests that there are not.
const (
	// most is how many routers are asked for one request, atOnce for how many requests at a time,
	// and atOnceTenant for how many of one tenant.
	most         = 32
	atOnce       = 64
	atOnceTenant = atOnce / 4
	// unlistedKeep is how long a router is asked that the mesh does not list any more: one whose lease has
	// ended may serve its requests, as workers that know it in that time do.
	unlistedKeep = time.Minute
	// patience is how long a router may take to say whether it has the request, which it does at
	// once: as long as it may take to connect to a worker. Who resumes a request that nobody has
	// waits for that where a router hangs.
	patience = routing.DefaultConnectTimeout
)

// Peers are the other routers. Its methods are safe for concurrent use.
type Peers struct {
	self string
	dial func(address string) (*grpc.ClientConn, error)

	mu       sync.Mutex
	routers  []router
	resumed  int            // requests that are, until their answers have been sent
	byTenant map[string]int // those of them whose callers were asked who they are
}

// router is where another one is.
type router struct {
	address string
	until   time.Time // when it is asked no more; zero: the mesh lists it
	drains  bool      // when the mesh does not list it any more, it has served its requests
}

// New returns the peers of the router with the id self: none until Take. Connections that
// dial makes are closed here. With a nil dial none is asked.
func New(self string, dial func(address string) (*grpc.ClientConn, error)) *Peers {
	return &Peers{self: self, dial: dial, byTenant: make(map[string]int)}
}

// Take takes in who is in the mesh.
func (p *Peers) Take(v membership.View) {
	var routers []router
	for _, r := range v.Workers {
		if r.GetRole() == controlv1.Role_ROLE_ROUTER && r.GetId() != p.self && len(r.GetAddresses()) > 0 && len(routers) < most {
			routers = append(routers, router{address: r.GetAddresses()[0], drains: r.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, before := range p.routers {
		if before.until.IsZero() {
			before.until = now.Add(unlistedKeep)
		}
		there := slices.ContainsFunc(routers, func(r router) bool { return r.address == before.address })
		if !there && !before.drains && now.Before(before.until) && len(routers) < most {
			routers = append(routers, before)
		}
	}
	p.routers = routers
}

// addresses are those of the routers to ask.
func (p *Peers) addresses() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, r := range p.routers {
		if r.until.IsZero() || now.Before(r.until) {
			out = append(out, r.address)
		}
	}
	return out
}

// Asks says whether the call of ctx is one of another router's Peers, which has asked all. Clients may
// say so as well: with TLS a router's certificate has to prove it.
func (p *Peers) Asks(ctx context.Context) bool {
	if p.dial == nil || len(metadata.ValueFromIncomingContext(ctx, api.HeaderAskedByRouter)) == 0 {
		return false
	}
	if from, ok := peer.FromContext(ctx); ok && identity.Secured(from.AuthInfo) {
		who, _ := identity.FromContext(ctx)
		return who.Role == identity.Router
	}
	return true
}

// enter counts one more request that is resumed, for a caller that may be nil.
func (p *Peers) enter(caller *auth.Principal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed >= atOnce {
		return rpc.Error(codes.ResourceExhausted, api.ReasonTooManyReaders, "too many requests of other routers are resumed here; retry later", time.Second)
	}
	if caller != nil {
		if p.byTenant[caller.Tenant] >= atOnceTenant {
			return rpc.Error(codes.ResourceExhausted, api.ReasonTenantLimit, fmt.Sprintf("%d requests of other routers are resumed here for tenant %q, its limit; retry when one has ended", atOnceTenant, caller.Tenant), time.Second)
		}
		p.byTenant[caller.Tenant]++
	}
	p.resumed++
	return nil
}

// leave counts one out that has entered.
func (p *Peers) leave(caller *auth.Principal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed--
	if caller == nil {
		return
	}
	if p.byTenant[caller.Tenant]--; p.byTenant[caller.Tenant] == 0 {
		delete(p.byTenant, caller.Tenant)
	}
}

// Resume calls found once another router has a request, and sends its events, as the router's
// own Resume does. The error is a status: REQUEST_NOT_FOUND if none of those that answered has it.
func (p *Peers) Resume(ctx context.Context, q *inferencev1.ResumeRequest, found func(), send func(*inferencev1.GenerateEvent) error) error {
	if p.dial == nil {
		return clienterr.NotYours(q.GetRequestId(), "and others are asked only over TLS, since your key would go there")
	}
	caller := auth.FromContext(ctx)
	if err := p.enter(caller); err != nil {
		return err
	}
	defer p.leave(caller)
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(auth.Forward(ctx), api.HeaderAskedByRouter, "1"))
	defer cancel()
	s, err := p.find(ctx, q)
	if err != nil {
		return err
	}
	defer s.close()
	found()
	for {
		switch event, err := s.events.Recv(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return clienterr.Status(err)
		case send(event) != nil:
			return clienterr.Gone(ctx)
		}
	}
}

// stream is the answer of a router that has the request, whose events may take long.
type stream struct {
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	events grpc.ServerStreamingClient[inferencev1.GenerateEvent]
}

func (s *stream) close() {
	s.cancel()
	_ = s.conn.Close()
}

// find asks all routers and returns the answer of the one that has the request.
func (p *Peers) find(ctx context.Context, q *inferencev1.ResumeRequest) (found *stream, err error) {
	type answer struct {
		from *stream
		err  error
	}
	addresses := p.addresses()
	asking, stop := context.WithCancel(ctx)
	defer stop()
	answers := make(chan answer)
	for _, address := range addresses {
		go func() {
			s, err := p.ask(ctx, asking, address, q)
			answers <- answer{s, err}
		}()
	}
	silent := 0
	for range addresses {
		a := <-answers
		switch {
		case a.err == nil && found == nil:
			found = a.from
			stop() // the others need not go on
		case a.err == nil:
			a.from.close()
		case rpc.Reason(a.err) == api.ReasonRequestNotFound:
		case rpc.Reason(a.err) == "" || rpc.Reason(a.err) == api.ReasonRouterShutdown:
			silent++
		case err == nil:
			err = a.err // it has the request, and refuses
		}
	}
	switch {
	case found != nil:
		return found, nil
	case ctx.Err() != nil:
		return nil, clienterr.Gone(ctx)
	case err != nil:
		return nil, err
	}
	return nil, clienterr.NotHere(q.GetRequestId(), len(addresses), silent)
}

// ask asks one router, until asking ends or patience does. The stream ends with ctx.
func (p *Peers) ask(ctx, asking context.Context, address string, q *inferencev1.ResumeRequest) (*stream, error) {
	conn, err := p.dial(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{conn: conn, cancel: cancel}
	waiting, done := context.WithTimeout(asking, patience)
	defer done()
	ended := context.AfterFunc(waiting, cancel)
	if s.events, err = inferencev1.NewInferenceClient(conn).Resume(ctx, q); err == nil {
		// Its header comes as soon as it is known to be there. Without one there is an error.
		var header metadata.MD
		if header, err = s.events.Header(); err == nil && header == nil {
			_, err = s.events.Recv()
		}
	}
	if !ended() && err == nil {
		err = waiting.Err() // what was received ends at once
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
