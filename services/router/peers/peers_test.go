package peers_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router/peers"
)

// endless is a router whose answers do not end.
type endless struct {
	inferencev1.UnimplementedInferenceServer
}

func (endless) Resume(_ *inferencev1.ResumeRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	<-stream.Context().Done()
	return status.FromContextError(stream.Context().Err()).Err()
}

// One tenant cannot keep the others from resuming requests of other routers.
func TestTenantsShareResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := workertest.NewNet(nil)
		server, listener := rpc.NewServer(rpc.ServerConfig{Name: "router"}), mesh.Listen("router:2")
		inferencev1.RegisterInferenceServer(server, endless{})
		var wait sync.WaitGroup
		defer wait.Wait()
		wait.Go(func() { _ = server.Serve(listener) })
		p := peers.New("router-1", mesh.Dial)
		p.Take(membership.View{Workers: []*controlv1.WorkerRecord{{Id: "router-2", Role: controlv1.Role_ROLE_ROUTER, Addresses: []string{"router:2"}}}})
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			ended, stop := context.WithCancel(context.Background())
			stop()
			_ = server.Stop(ended)
		}()
		var mu sync.Mutex
		refused := map[string]int{}
		found := map[string]int{}
		resume := func(ctx context.Context, tenant string, times int) {
			for range times {
				caller := ctx
				if tenant != "" {
					caller = auth.With(ctx, &auth.Principal{Tenant: tenant}, "")
				}
				wait.Go(func() {
					count := func(what map[string]int) {
						mu.Lock()
						defer mu.Unlock()
						what[tenant]++
					}
					err := p.Resume(caller, &inferencev1.ResumeRequest{RequestId: "a"}, func() { count(found) }, func(*inferencev1.GenerateEvent) error { return errors.New("there is none") })
					if status.Code(err) == codes.ResourceExhausted && (rpc.Reason(err) == api.ReasonTenantLimit) == (tenant != "") {
						count(refused)
					}
				})
			}
			synctest.Wait()
		}
		first, end := context.WithCancel(ctx)
		resume(first, "acme", 20)
		resume(ctx, "other", 10)
		resume(ctx, "", 40) // nobody asks who they are
		for tenant, want := range map[string][2]int{"acme": {16, 4}, "other": {10, 0}, "": {38, 2}} {
			if found[tenant] != want[0] || refused[tenant] != want[1] {
				t.Errorf("tenant %q: %d are resumed and %d refused, want %d and %d", tenant, found[tenant], refused[tenant], want[0], want[1])
			}
		}
		end()
		synctest.Wait()
		resume(ctx, "acme", 1)
		if found["acme"] != 17 {
			t.Error("what has ended counts for ever")
		}
	})
}

// A router that lost its lease may serve, and is asked for a minute. One that the mesh has always is, and
// one that has drained is not.
func TestRouterThatIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := workertest.NewNet(nil)
		server, listener := rpc.NewServer(rpc.ServerConfig{Name: "router"}), mesh.Listen("router:2")
		inferencev1.RegisterInferenceServer(server, endless{})
		var wait sync.WaitGroup
		defer wait.Wait()
		wait.Go(func() { _ = server.Serve(listener) })
		ended, end := context.WithCancel(context.Background())
		end()
		defer func() { _ = server.Stop(ended) }()
		p := peers.New("router-1", mesh.Dial)
		state := controlv1.WorkerState_WORKER_STATE_SERVING
		take := func(listed bool) {
			v := membership.View{Workers: []*controlv1.WorkerRecord{{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Addresses: []string{"router:1"}}}}
			if listed {
				v.Workers = append(v.Workers, &controlv1.WorkerRecord{Id: "router-2", Role: controlv1.Role_ROLE_ROUTER, Addresses: []string{"router:2"}, State: state})
			}
			p.Take(v)
		}
		check := func(when string, want bool) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			found := false
			err := p.Resume(ctx, &inferencev1.ResumeRequest{RequestId: "a"}, func() { found = true; cancel() }, func(*inferencev1.GenerateEvent) error { return nil })
			cancel()
			if found != want || !want && rpc.Reason(err) != api.ReasonRequestNotFound {
				t.Errorf("%s: found %v, %v", when, found, err)
			}
		}
		take(true)
		time.Sleep(2 * time.Minute)
		check("listed", true)
		take(false)
		check("not listed", true)
		time.Sleep(50 * time.Second)
		take(false)
		check("not listed for 50 s", true)
		time.Sleep(11 * time.Second)
		check("not listed for 61 s", false)
		take(true)
		take(true)
		time.Sleep(2 * time.Minute)
		check("listed again", true)
		state = controlv1.WorkerState_WORKER_STATE_DRAINING
		take(true)
		check("draining", true)
		take(false)
		check("drained", false)
	})
}

// asked answers whether it takes a call for one of a router that has asked all.
type asked struct {
	inferencev1.UnimplementedInferenceServer
	peers *peers.Peers
}

func (a asked) Tokenize(ctx context.Context, _ *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	if !a.peers.Asks(ctx) {
		return nil, status.Error(codes.PermissionDenied, "no router asks")
	}
	return &inferencev1.TokenizeResponse{}, nil
}

// Clients are not believed that they are routers, where routers have certificates or ask nobody.
func TestWhoIsARouter(t *testing.T) {
	folder := t.TempDir()
	ca, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	source := func(role identity.Role) *identity.Source {
		certificate := filepath.Join(folder, string(role))
		if err := ca.Issue(certificate, authority.Request{Identity: identity.Identity{Role: role, Name: "a"}, Hosts: []string{"127.0.0.1"}}, 0o600); err != nil {
			t.Fatal(err)
		}
		source, err := identity.Open(authority.Config(certificate), nil)
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	nobody, err := identity.Open(identity.Config{CAFile: filepath.Join(folder, authority.CAFile)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	router := source(identity.Router)
	dial := workertest.NewNet(nil).Dial
	for _, c := range []struct {
		name           string
		dial           func(string) (*grpc.ClientConn, error)
		server, client credentials.TransportCredentials
		header         bool
		want           codes.Code
	}{
		{"in the clear", dial, nil, nil, true, codes.OK},
		{"in the clear, where routers ask nobody", nil, nil, nil, true, codes.PermissionDenied},
		{"a client", dial, router.Server(false), nobody.Client(), true, codes.PermissionDenied},
		{"a worker", dial, router.Server(false), source(identity.Prefill).Peer(identity.Router), true, codes.PermissionDenied},
		{"a router", dial, router.Server(false), router.Peer(identity.Router), true, codes.OK},
		{"a router that does not say so", dial, router.Server(false), router.Peer(identity.Router), false, codes.PermissionDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := rpc.NewServer(rpc.ServerConfig{Name: "router", Credentials: c.server})
			inferencev1.RegisterInferenceServer(server, asked{peers: peers.New("router-1", c.dial)})
			var wait sync.WaitGroup
			defer wait.Wait()
			wait.Go(func() { _ = server.Serve(listener) })
			defer func() { _ = server.Stop(t.Context()) }()
			conn, err := rpc.Dial(listener.Addr().String(), rpc.ClientConfig{Name: "client", Credentials: c.client})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			ctx := t.Context()
			if c.header {
				ctx = metadata.AppendToOutgoingContext(ctx, api.HeaderAskedByRouter, "1")
			}
			if _, err := inferencev1.NewInferenceClient(conn).Tokenize(ctx, &inferencev1.TokenizeRequest{}, grpc.WaitForReady(true)); status.Code(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
