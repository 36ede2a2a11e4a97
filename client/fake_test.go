package client_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// fate is what comes of one call: so many events, and then an error, nil for none.
type fate struct {
	events int
	err    error
}

// call is one that a router had.
type call struct {
	router, method string
	seed           uint64
	offset         uint64 // of Resume
	at             time.Time
	token          string // that came with it
}

// routers of one mesh. The next call, at whichever router, has the first of the fates; one
// without succeeds.
type routers struct {
	mu    sync.Mutex
	fates []fate
	calls []call
	// cancelled is how many calls ended before they were answered.
	cancelled int
	sent      int // events of tokens
}

func (m *routers) begin(ctx context.Context, c call) fate {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.at = time.Now()
	c.token = strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), " ")
	m.calls = append(m.calls, c)
	if len(m.fates) == 0 {
		return fate{events: 1 << 30}
	}
	f := m.fates[0]
	m.fates = m.fates[1:]
	return f
}

// router answers with tokens that follow from the seed.
type router struct {
	inferencev1.UnimplementedInferenceServer
	mesh        *routers
	name        string
	fingerprint string
	drawn       uint64 // seed of a request that names none
	flawed      bool   // its tokens are others
	short       int    // its answers lack so many tokens at the end
	batch       int    // tokens in one event; 0 is 1
	forgets     bool   // it cannot resume
	padding     int    // bytes of text beside each token
	prompt      int    // tokens of the prompt whose log probabilities it sends
}

const answerTokens = 12

func tokenOf(seed uint64, offset int) uint32 { return uint32(seed)*100 + uint32(offset) }

// heldText is the text that is known after so many tokens: one third of the tokens wait for the next.
func heldText(seed uint64, tokens, padding int) string {
	var b strings.Builder
	for i := range tokens - tokens%3/2 {
		fmt.Fprint(&b, "·", tokenOf(seed, i), strings.Repeat("x", padding))
	}
	return b.String()
}

func wholeText(seed uint64) string { return heldText(seed, answerTokens, 0) }

func (r *router) Generate(q *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	seed := r.drawn
	if s := q.GetSampling(); s != nil && s.Seed != nil {
		seed = s.GetSeed()
	}
	return r.answer(r.mesh.begin(stream.Context(), call{router: r.name, method: "Generate", seed: q.GetSampling().GetSeed()}), seed, 0, q.GetResumableFor() != nil, stream)
}

func (r *router) Resume(q *inferencev1.ResumeRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	f := r.mesh.begin(stream.Context(), call{router: r.name, method: "Resume", offset: q.GetOffset()})
	var seed uint64
	if _, err := fmt.Sscanf(q.GetRequestId()+" "+q.GetSecret(), "r%d secret", &seed); err != nil || r.forgets {
		return statusOf(codes.NotFound, "REQUEST_NOT_FOUND", 0)
	}
	return r.answer(f, seed, int(q.GetOffset()), true, stream)
}

func (r *router) answer(f fate, seed uint64, from int, resumable bool, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	left, whole := f.events, answerTokens-r.short
	send := func(event *inferencev1.GenerateEvent) error {
		if left == 0 {
			return f.err
		}
		left--
		if err := stream.Send(event); err != nil {
			r.mesh.mu.Lock()
			defer r.mesh.mu.Unlock()
			r.mesh.cancelled++
			return err
		}
		return nil
	}
	accepted := &inferencev1.Accepted{RequestId: fmt.Sprintf("r%d", seed), Seed: seed, SystemFingerprint: r.fingerprint, Secret: "secret", PromptTokens: 3}
	if !resumable {
		accepted.Secret = ""
	}
	if err := send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: accepted}}); err != nil {
		return err
	}
	for at := 0; from == 0 && at < r.prompt; at += max(r.batch, 1) {
		scores := &inferencev1.PromptLogprobs{Offset: uint32(at)}
		for i := at; i < min(at+max(r.batch, 1), r.prompt); i++ {
			scores.TokenIds = append(scores.TokenIds, uint32(i))
			scores.Logprobs = append(scores.Logprobs, &inferencev1.TokenLogprobs{Logprob: -float32(i)})
		}
		if err := send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: scores}}); err != nil {
			return err
		}
	}
	known := len(heldText(seed, from, r.padding))
	for from < whole {
		delta := &inferencev1.TokenDelta{}
		to := min(from+max(r.batch, 1), whole)
		for i := from; i < to; i++ {
			id := tokenOf(seed, i)
			if r.flawed {
				id++
			}
			delta.TokenIds = append(delta.TokenIds, id)
			delta.Logprobs = append(delta.Logprobs, &inferencev1.TokenLogprobs{Logprob: -float32(i)})
		}
		text := heldText(seed, to, r.padding)
		delta.Text, known = text[known:], len(text)
		if err := send(&inferencev1.GenerateEvent{Offset: uint64(from), Event: &inferencev1.GenerateEvent_Tokens{Tokens: delta}}); err != nil {
			return err
		}
		from = to
		r.mesh.mu.Lock()
		r.mesh.sent++
		r.mesh.mu.Unlock()
	}
	end := &inferencev1.Finished{Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, Text: " end", Usage: &inferencev1.Usage{PromptTokens: 3, CompletionTokens: uint32(whole)}}
	if err := send(&inferencev1.GenerateEvent{Offset: uint64(whole), Event: &inferencev1.GenerateEvent_Finished{Finished: end}}); err != nil {
		return err
	}
	if left < 1<<20 {
		return f.err // after the answer
	}
	return nil
}

func (r *router) Tokenize(ctx context.Context, q *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	if f := r.mesh.begin(ctx, call{router: r.name, method: "Tokenize"}); f.err != nil {
		return nil, f.err
	}
	return &inferencev1.TokenizeResponse{TokenIds: []uint32{uint32(len(q.GetText()))}}, nil
}

func (r *router) Detokenize(ctx context.Context, q *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	if f := r.mesh.begin(ctx, call{router: r.name, method: "Detokenize"}); f.err != nil {
		return nil, f.err
	}
	return &inferencev1.DetokenizeResponse{Text: fmt.Sprint(q.GetTokenIds())}, nil
}

func (r *router) ListModels(ctx context.Context, _ *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	if f := r.mesh.begin(ctx, call{router: r.name, method: "ListModels"}); f.err != nil {
		return nil, f.err
	}
	return &inferencev1.ListModelsResponse{Models: []*inferencev1.Model{{Name: "fable"}}}, nil
}

// statusOf is an error as a mesh makes it.
func statusOf(code codes.Code, reason string, retryAfter time.Duration) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: "tandem"}}
	if retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	s, err := status.New(code, "refused").WithDetails(details...)
	if err != nil {
		return err
	}
	return s.Err()
}

var errLost = status.Error(codes.Unavailable, "the router is lost")

// connect is a client of routers in this process, until end.
func connect(t testing.TB, options []client.Option, all ...*router) (c *client.Client, end func()) {
	t.Helper()
	var addresses []string
	var servers []*grpc.Server
	listeners := map[string]*bufconn.Listener{}
	var wait sync.WaitGroup
	for i, r := range all {
		r.name = string(rune('a' + i))
		address := r.name + ":7070"
		listener, server := bufconn.Listen(1<<16), grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
		inferencev1.RegisterInferenceServer(server, r)
		wait.Go(func() { _ = server.Serve(listener) })
		listeners[address], addresses, servers = listener, append(addresses, address), append(servers, server)
	}
	dialer := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return listeners[address].DialContext(ctx)
	})
	c, err := client.New(addresses, append(slices.Clone(options), client.WithDialOptions(dialer))...)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		_ = c.Close()
		for _, s := range servers {
			s.Stop()
		}
		wait.Wait()
	}
}
