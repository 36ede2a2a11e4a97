package commands_test

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRouter answers as it is told.
type fakeRouter struct {
	inferencev1.UnimplementedInferenceServer
	controlv1.UnimplementedControlServer
	controlv1.UnimplementedKeysServer

	explainOwn func(*controlv1.ExplainOwnRequest) (*controlv1.ExplainResponse, error)

	generate  func(*inferencev1.GenerateRequest, grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error
	workers   []*controlv1.ListWorkersResponse
	drain     func(*controlv1.DrainRequest, grpc.ServerStreamingServer[controlv1.DrainProgress]) error
	undrain   func(*controlv1.UndrainRequest) error
	explain   func(*controlv1.ExplainRequest) (*controlv1.ExplainResponse, error)
	budget    *controlv1.GetBudgetResponse
	health    *health.Server
	policy    *controlv1.Policy
	revision  int64             // of policy
	meanwhile *controlv1.Policy // set by somebody else before the next SetPolicy; nil: none
	keys      []*controlv1.ApiKey

	clientsOnly   bool   // Control is served elsewhere
	contextTokens uint32 // of the model; 0: 4096
}

func (f *fakeRouter) Generate(r *inferencev1.GenerateRequest, s grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	return f.generate(r, s)
}

func (f *fakeRouter) ListModels(context.Context, *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	return &inferencev1.ListModelsResponse{Models: []*inferencev1.Model{{Name: "fake", VocabularySize: 100, ContextTokens: cmp.Or(f.contextTokens, 4096)}}}, nil
}

func (f *fakeRouter) ListWorkers(context.Context, *controlv1.ListWorkersRequest) (*controlv1.ListWorkersResponse, error) {
	if len(f.workers) == 0 {
		return nil, rpc.Errorf(codes.Unavailable, "NO_LIST", "there is no list")
	}
	return f.workers[0], nil
}

func (f *fakeRouter) WatchWorkers(_ *controlv1.ListWorkersRequest, s grpc.ServerStreamingServer[controlv1.ListWorkersResponse]) error {
	for _, w := range f.workers {
		if err := s.Send(w); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeRouter) Drain(r *controlv1.DrainRequest, s grpc.ServerStreamingServer[controlv1.DrainProgress]) error {
	return f.drain(r, s)
}

func (f *fakeRouter) Undrain(_ context.Context, r *controlv1.UndrainRequest) (*controlv1.UndrainResponse, error) {
	return &controlv1.UndrainResponse{}, f.undrain(r)
}

func (f *fakeRouter) Explain(_ context.Context, r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
	return f.explain(r)
}

func (f *fakeRouter) GetBudget(context.Context, *controlv1.GetBudgetRequest) (*controlv1.GetBudgetResponse, error) {
	return f.budget, nil
}

// fakeRequests is what callers ask; its Explain is another than Control's.
type fakeRequests struct {
	controlv1.UnimplementedRequestsServer
	fake *fakeRouter
}

func (f fakeRequests) Explain(_ context.Context, r *controlv1.ExplainOwnRequest) (*controlv1.ExplainResponse, error) {
	return f.fake.explainOwn(r)
}

func (f *fakeRouter) ListKeys(context.Context, *controlv1.ListKeysRequest) (*controlv1.ListKeysResponse, error) {
	return &controlv1.ListKeysResponse{Keys: f.keys}, nil
}

func (f *fakeRouter) GetPolicy(context.Context, *controlv1.GetPolicyRequest) (*controlv1.GetPolicyResponse, error) {
	force := &controlv1.Policy{TenantMaxRequests: proto.Uint32(256), Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "0123456789abcdef", ArithmeticClass: "cpu/bf16/3"}}}
	if len(f.policy.GetVersions()) > 0 {
		force.Versions = nil
	}
	proto.Merge(force, f.policy)
	return &controlv1.GetPolicyResponse{Policy: f.policy, InForce: force, Revision: f.revision}, nil
}

func (f *fakeRouter) SetPolicy(_ context.Context, r *controlv1.SetPolicyRequest) (*controlv1.SetPolicyResponse, error) {
	if r.GetPolicy().GetTenantMaxRequests() == 7 {
		return nil, rpc.InvalidArgument("policy.tenant_max_requests", "7 is none")
	}
	if f.meanwhile != nil {
		f.policy, f.meanwhile = f.meanwhile, nil
		f.revision++
	}
	if r.IfRevision != nil && r.GetIfRevision() != f.revision {
		return nil, rpc.Error(codes.Aborted, api.ReasonPolicyChanged, "it has changed", 0)
	}
	f.policy = r.GetPolicy()
	f.revision++
	return &controlv1.SetPolicyResponse{Policy: f.policy}, nil
}

// start serves until the test ends and returns the address.
func (f *fakeRouter) start(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	inferencev1.RegisterInferenceServer(server, f)
	controlv1.RegisterRequestsServer(server, fakeRequests{fake: f})
	if !f.clientsOnly {
		controlv1.RegisterControlServer(server, f)
		controlv1.RegisterKeysServer(server, f)
	}
	f.health = health.NewServer()
	healthv1.RegisterHealthServer(server, f.health)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return "unix://" + listener.Addr().String()
}

// outcome is what a command left behind.
type outcome struct {
	status         int
	stdout, stderr string
}

func run(ctx context.Context, stdin string, environ []string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	status := commands.Run(ctx, commands.Process{
		Args: args, Environ: environ, Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr,
	})
	return outcome{status, stdout.String(), stderr.String()}
}

// checkFailure checks that an error came as one line that holds want.
func checkFailure(t *testing.T, o outcome, status int, want string) {
	t.Helper()
	if o.status != status {
		t.Errorf("exit status %d, want %d", o.status, status)
	}
	if !strings.HasPrefix(o.stderr, "tandem: ") || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, want) {
		t.Errorf("standard error %q, want one line \"tandem: …\" with %q", o.stderr, want)
	}
}

// signalWriter collects text and closes seen at the first line.
type signalWriter struct {
	text strings.Builder
	seen chan struct{}
}

func (w *signalWriter) Write(b []byte) (int, error) {
	if w.text.Len() == 0 {
		defer close(w.seen)
	}
	return w.text.Write(b)
}

func runTo(ctx context.Context, stdout io.Writer, args ...string) int {
	return commands.Run(ctx, commands.Process{Args: args, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: io.Discard})
}
