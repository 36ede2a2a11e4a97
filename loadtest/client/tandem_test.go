package client_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// fakeRouter answers every Generate with the same events.
type fakeRouter struct {
	inferencev1.UnimplementedInferenceServer

	models []*inferencev1.Model
	events []*inferencev1.GenerateEvent
	every  time.Duration
	end    error
	asked  chan *inferencev1.GenerateRequest
}

func (f *fakeRouter) ListModels(context.Context, *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	return &inferencev1.ListModelsResponse{Models: f.models}, nil
}

func (f *fakeRouter) Generate(q *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	f.asked <- q
	for _, e := range f.events {
		select {
		case <-time.After(f.every):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return f.end
}

// behind starts an in-memory fake router and its client, until the test ends.
func behind(t *testing.T, f *fakeRouter, cfg client.TandemConfig) client.Client {
	t.Helper()
	f.asked = make(chan *inferencev1.GenerateRequest, 10)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	inferencev1.RegisterInferenceServer(server, f)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	cfg.Address, cfg.Connections = "router:1", 2
	cfg.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	tandem, err := client.NewTandem(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tandem.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return tandem
}

func accepted() *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{
		Accepted: &inferencev1.Accepted{RequestId: "r-1", Model: "m", PromptTokens: 4},
	}}
}

func tokens(offset uint64, text string, ids ...uint32) *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Offset: offset, Event: &inferencev1.GenerateEvent_Tokens{
		Tokens: &inferencev1.TokenDelta{TokenIds: ids, Text: text},
	}}
}

func finished() *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Offset: 4, Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
		Reason: inferencev1.FinishReason_FINISH_REASON_STOP, Text: "!",
		Usage:   &inferencev1.Usage{PromptTokens: 4, CachedTokens: 2, CompletionTokens: 4},
		Route:   &inferencev1.Route{Prefill: "p1", Decode: "d1"},
		Timings: &inferencev1.Timings{TotalNs: 123},
	}}}
}

func TestTandemNotesWhatComesWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRouter{every: 10 * time.Millisecond, events: []*inferencev1.GenerateEvent{
			accepted(), tokens(0, "a", 5), tokens(1, "", 6, 700000), tokens(3, "only text"), tokens(3, "é", 0), finished(),
		}}
		server := behind(t, f, client.TandemConfig{Model: "m", Mode: inferencev1.Mode_MODE_AGGREGATED, TTFT: time.Second, TPOT: 50 * time.Millisecond})
		counts := new(client.Counts)
		r := new(record.Record)
		answer := server.Do(t.Context(), &workload.Request{
			Prompt: workload.Prompt{TokenIDs: []uint32{1, 2}}, MaxTokens: 9, Exact: true, Temperature: .5, Seed: 3, Priority: 7, Tenant: "t", CacheSalt: "s",
			Then: func(workload.Answer) (*workload.Request, time.Duration) { return nil, 0 },
		}, client.NewClock(time.Now()).Counting(counts), r)

		const ms = time.Millisecond
		if r.Outcome != record.Completed || r.Sent != 0 || r.Admitted != 10*ms || r.End != 60*ms || r.ID != "r-1" {
			t.Errorf("%+v", r)
		}
		want := []record.Arrival{{At: 20 * ms, Tokens: 1}, {At: 30 * ms, Tokens: 2}, {At: 50 * ms, Tokens: 1}}
		if len(r.Arrivals) != len(want) || r.Arrivals[0] != want[0] || r.Arrivals[1] != want[1] || r.Arrivals[2] != want[2] {
			t.Errorf("arrivals %v, want %v", r.Arrivals, want)
		}
		if r.PromptTokens != 4 || r.CachedTokens != 2 || r.OutputTokens != 4 || r.FinishReason != "stop" ||
			r.Timings.GetTotalNs() != 123 || r.Route.GetDecode() != "d1" {
			t.Errorf("%+v", r)
		}
		if answer.Text != "aonly texté!" || len(answer.TokenIDs) != 4 || answer.TokenIDs[2] != 700000 {
			t.Errorf("%+v", answer)
		}
		if counts.Admitted() != 1 || counts.Tokens() != 4 {
			t.Errorf("counted %d, %d", counts.Admitted(), counts.Tokens())
		}
		q := <-f.asked
		if q.GetModel() != "m" || len(q.GetTokenIds().GetIds()) != 2 || q.GetMaxTokens() != 9 || !q.GetIgnoreEos() ||
			q.GetSampling().GetTemperature() != .5 || q.GetSampling().GetSeed() != 3 || q.GetPriority() != 7 || q.GetTenant() != "t" ||
			q.GetCacheSalt() != "s" || q.GetMode() != inferencev1.Mode_MODE_AGGREGATED ||
			q.GetSlo().GetTtft().AsDuration() != time.Second || q.GetSlo().GetTpot().AsDuration() != 50*ms {
			t.Errorf("asked %v", q)
		}
	})
}

// detailed is an error with details like those of Tandem's servers.
func detailed(t *testing.T, code codes.Code, message string) error {
	t.Helper()
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: "NO_WORKER", Domain: "tandem"})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

func TestTandemOutcomes(t *testing.T) {
	long := strings.Repeat("é", 300)
	cases := []struct {
		name    string
		events  []*inferencev1.GenerateEvent
		end     error
		limit   time.Duration // of the client; below 0: it cancels
		outcome record.Outcome
		code    string
		message string
		reason  string
	}{
		{name: "refused", end: status.Error(codes.ResourceExhausted, "full"), outcome: record.Rejected, code: "RESOURCE_EXHAUSTED", message: "full"},
		{name: "no worker", end: status.Error(codes.Unavailable, "none"), outcome: record.Rejected, code: "UNAVAILABLE", message: "none"},
		{
			name: "refused after all, and not why", events: []*inferencev1.GenerateEvent{accepted()}, end: status.Error(codes.Unavailable, "gone"),
			outcome: record.Failed, code: "UNAVAILABLE", message: "gone",
		},
		{
			name: "refused after all", events: []*inferencev1.GenerateEvent{accepted()}, end: detailed(t, codes.Unavailable, "no worker"),
			outcome: record.Rejected, code: "UNAVAILABLE", message: "no worker", reason: "NO_WORKER",
		},
		{
			name: "breaks off", events: []*inferencev1.GenerateEvent{accepted(), tokens(0, "a", 1)}, end: status.Error(codes.Unavailable, "gone"),
			outcome: record.Failed, code: "UNAVAILABLE", message: "gone",
		},
		{name: "bad request", end: status.Error(codes.InvalidArgument, long), outcome: record.Failed, code: "INVALID_ARGUMENT", message: strings.Repeat("é", 100) + "…"},
		{name: "no result", events: []*inferencev1.GenerateEvent{accepted()}, outcome: record.Failed, code: "DATA_LOSS", message: "the stream ended without a result"},
		{name: "the server's deadline", end: status.Error(codes.DeadlineExceeded, "late"), outcome: record.Failed, code: "DEADLINE_EXCEEDED", message: "late"},
		{name: "too slow", events: []*inferencev1.GenerateEvent{accepted(), accepted(), finished()}, limit: 15 * time.Millisecond, outcome: record.TimedOut, code: "DEADLINE_EXCEEDED"},
		{name: "cancelled", events: []*inferencev1.GenerateEvent{accepted(), accepted(), finished()}, limit: -1, outcome: record.Cancelled, code: "CANCELLED"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := behind(t, &fakeRouter{every: 10 * time.Millisecond, events: c.events, end: c.end}, client.TandemConfig{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch {
				case c.limit > 0:
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				case c.limit < 0:
					time.AfterFunc(15*time.Millisecond, cancel)
				}
				r := new(record.Record)
				server.Do(ctx, &workload.Request{Prompt: workload.Prompt{Text: "x"}, MaxTokens: 1}, client.NewClock(time.Now()), r)
				if r.Outcome != c.outcome || r.Code != c.code || (c.message != "" && r.Error != c.message) || r.Reason != c.reason {
					t.Errorf("%s %s %q for %q", r.Outcome, r.Code, r.Error, r.Reason)
				}
				if r.CachedTokens != -1 {
					t.Errorf("%d cached tokens of which the server said nothing", r.CachedTokens)
				}
			})
		})
	}
}

func TestTandemDescribe(t *testing.T) {
	small, large := &inferencev1.Model{Name: "small", VocabularySize: 9, ContextTokens: 64}, &inferencev1.Model{Name: "large"}
	cases := []struct {
		name, model string
		models      []*inferencev1.Model
		want        string // model, or part of an error
	}{
		{"the only one", "", []*inferencev1.Model{small}, "small"},
		{"by name", "large", []*inferencev1.Model{large, small}, "large"},
		{"which", "", []*inferencev1.Model{large, small}, "pass --model with one of large, small"},
		{"unknown", "huge", []*inferencev1.Model{small}, `does not serve model "huge": pass --model with one of small`},
		{"none", "", nil, "serves no model yet"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := behind(t, &fakeRouter{models: c.models}, client.TandemConfig{Model: c.model}).Describe(t.Context())
				if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.Model != c.want {
					t.Errorf("%+v, %v, want %q", got, err, c.want)
				}
				if got.Model == "small" && (got.Kind != "tandem" || got.VocabularySize != 9 || got.ContextTokens != 64 || got.Address != "router:1") {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// A port without listener fails at once, and the error says what to do.
func TestTandemUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	server, err := client.NewTandem(client.TandemConfig{Address: listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := server.Describe(t.Context()); err == nil || err.Error() != "cannot reach the router at "+listener.Addr().String()+": start it with 'tandem up', or pass --addr" {
		t.Errorf("%v", err)
	}
	r := new(record.Record)
	server.Do(t.Context(), &workload.Request{Prompt: workload.Prompt{Text: "x"}, MaxTokens: 1}, client.NewClock(time.Now()), r)
	if r.Outcome != record.Failed || r.Code != "UNAVAILABLE" || r.Sent != record.Unset || r.End < 0 {
		t.Errorf("%+v", r)
	}
}

// A name that nobody knows is no router that has to be started.
func TestTandemHostNotFound(t *testing.T) {
	server, err := client.NewTandem(client.TandemConfig{Address: "nohost:7070", Dialer: func(context.Context, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "nohost", IsNotFound: true}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := server.Describe(t.Context()); err == nil || err.Error() != "host of nohost:7070 not found: check its name" {
		t.Errorf("%v", err)
	}
}

func TestTandemConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  client.TandemConfig
		want string
	}{
		{client.TandemConfig{Address: "nowhere"}, "give host:port"},
		{client.TandemConfig{Address: "unix://run/x.sock"}, "must be absolute"},
		{client.TandemConfig{Address: "a:1", Connections: -1}, "use 1 to 1024"},
	} {
		if _, err := client.NewTandem(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}
