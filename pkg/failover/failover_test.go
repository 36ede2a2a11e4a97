package failover_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/failover"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// fates say, of one call after the other, after how many events its router is lost; below 0:
// it is not.
type fates struct {
	mu    sync.Mutex
	next  []int
	seeds []uint64 // that were asked for; 0: none
	calls int
}

func (f *fates) draw(q *inferencev1.GenerateRequest) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.seeds = append(f.seeds, q.GetSampling().GetSeed())
	if len(f.next) == 0 {
		return -1
	}
	events := f.next[0]
	f.next = f.next[1:]
	return events
}

// fake is a router that tells what a seed says.
type fake struct {
	inferencev1.UnimplementedInferenceServer
	fates       *fates
	fingerprint string
	drawn       uint64 // seed of a request that names none
	flawed      bool   // its tokens are others
}

const answerTokens = 12

func tokenOf(seed uint64, offset int) uint32 { return uint32(seed)*100 + uint32(offset) }

func (f *fake) Generate(q *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	left := f.fates.draw(q)
	send := func(event *inferencev1.GenerateEvent) error {
		if left == 0 {
			return status.Error(codes.Unavailable, "the router is lost")
		}
		left--
		return stream.Send(event)
	}
	seed := f.drawn
	if s := q.GetSampling(); s != nil && s.Seed != nil {
		seed = s.GetSeed()
	}
	if err := send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{Seed: seed, SystemFingerprint: f.fingerprint}}}); err != nil {
		return err
	}
	for i := range answerTokens {
		id := tokenOf(seed, i)
		if f.flawed {
			id++
		}
		delta := &inferencev1.TokenDelta{TokenIds: []uint32{id}, Text: fmt.Sprint(id, " ")}
		if err := send(&inferencev1.GenerateEvent{Offset: uint64(i), Event: &inferencev1.GenerateEvent_Tokens{Tokens: delta}}); err != nil {
			return err
		}
	}
	return send(&inferencev1.GenerateEvent{Offset: answerTokens, Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{}}})
}

func (f *fake) ListModels(context.Context, *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	if f.fates.draw(nil) == 0 {
		return nil, status.Error(codes.Unavailable, "the router is lost")
	}
	return &inferencev1.ListModelsResponse{}, nil
}

// connect is a client of the routers, until end.
func connect[R inferencev1.InferenceServer](t testing.TB, routers ...R) (client *failover.Client, end func()) {
	t.Helper()
	var conns []*grpc.ClientConn
	var servers []*grpc.Server
	var wait sync.WaitGroup
	for i, f := range routers {
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		inferencev1.RegisterInferenceServer(server, f)
		wait.Go(func() { _ = server.Serve(listener) })
		conn, err := rpc.Dial(fmt.Sprintf("router:%d", i+1), rpc.ClientConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }})
		if err != nil {
			t.Fatal(err)
		}
		conns, servers = append(conns, conn), append(servers, server)
	}
	client = failover.New(conns...)
	return client, func() {
		_ = client.Close()
		for _, s := range servers {
			s.Stop()
		}
		wait.Wait()
	}
}

// Wherever routers are lost, the answer is the whole one, each token once.
func TestAnswersGoOnElsewhere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &fates{next: rapid.SliceOfN(rapid.IntRange(0, answerTokens+1), 0, 2).Draw(rt, "lost after")}
		if rapid.Bool().Draw(rt, "for longer") && len(f.next) == 2 {
			f.next = append(f.next, 3) // a second round
		}
		lost := slices.Clone(f.next)
		client, end := connect(t, &fake{fates: f, drawn: 7, fingerprint: "fp"}, &fake{fates: f, drawn: 8, fingerprint: "fp"})
		defer end()
		q := &inferencev1.GenerateRequest{}
		if rapid.Bool().Draw(rt, "with a seed") {
			q.Sampling = &inferencev1.Sampling{Seed: proto.Uint64(9)}
		}
		sent := proto.CloneOf(q)
		var got []uint32
		var text strings.Builder
		var seed uint64
		finished := 0
		err := client.Generate(t.Context(), q, func(event *inferencev1.GenerateEvent) error {
			if a := event.GetAccepted(); a != nil && seed == 0 {
				seed = a.GetSeed()
			}
			if ids := event.GetTokens().GetTokenIds(); len(ids) > 0 && int(event.GetOffset()) != len(got) {
				rt.Errorf("offset %d after %d tokens", event.GetOffset(), len(got))
			}
			got = append(got, event.GetTokens().GetTokenIds()...)
			text.WriteString(event.GetTokens().GetText())
			if event.GetFinished() != nil {
				finished++
			}
			return nil
		})
		var want []uint32
		var words strings.Builder
		for i := range answerTokens {
			want = append(want, tokenOf(seed, i))
			fmt.Fprint(&words, want[i], " ")
		}
		if err != nil || !slices.Equal(got, want) || text.String() != words.String() || finished != 1 || f.calls != len(lost)+1 || !proto.Equal(q, sent) {
			rt.Errorf("lost %v: %v after %d calls with seeds %v: %v %q", lost, err, f.calls, f.seeds, got, text.String())
		}
	})
}

// What another try would not mend is told at once.
func TestWhatEndsIt(t *testing.T) {
	errStop := errors.New("stop")
	for _, c := range []struct {
		name    string
		routers func(*fates) []*fake
		lost    []int
		receive error
		code    codes.Code
		calls   int
	}{
		{"one router", func(f *fates) []*fake { return []*fake{{fates: f}} }, []int{0}, nil, codes.Unavailable, 1},
		{"other weights", func(f *fates) []*fake {
			return []*fake{{fates: f, fingerprint: "a"}, {fates: f, fingerprint: "b"}}
		}, []int{3}, nil, codes.DataLoss, 2},
		{"other tokens", func(f *fates) []*fake { return []*fake{{fates: f}, {fates: f, flawed: true}} }, []int{3}, nil, codes.DataLoss, 2},
		{"the caller", func(f *fates) []*fake { return []*fake{{fates: f}, {fates: f}} }, nil, errStop, codes.Unknown, 1},
		{"the caller, unavailable", func(f *fates) []*fake { return []*fake{{fates: f}, {fates: f}} }, nil, status.Error(codes.Unavailable, "mine"), codes.Unavailable, 1},
	} {
		f := &fates{next: c.lost}
		client, end := connect(t, c.routers(f)...)
		err := client.Generate(t.Context(), &inferencev1.GenerateRequest{}, func(*inferencev1.GenerateEvent) error { return c.receive })
		if status.Code(err) != c.code || f.calls != c.calls || c.receive != nil && !errors.Is(err, c.receive) {
			t.Errorf("%s: %v after %d calls", c.name, err, f.calls)
		}
		end()
	}
}

// The pause between rounds ends with the caller's patience.
func TestCallerLeavesInAPause(t *testing.T) {
	f := &fates{next: make([]int, 100)}
	client, end := connect(t, &fake{fates: f}, &fake{fates: f})
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	err := client.Generate(ctx, &inferencev1.GenerateRequest{}, func(*inferencev1.GenerateEvent) error { return nil })
	if err == nil || f.calls >= 10 {
		t.Errorf("%v after %d calls", err, f.calls)
	}
}

func TestListModelsAtTheRouterThatAnswers(t *testing.T) {
	f := &fates{next: []int{0, -1}}
	client, end := connect(t, &fake{fates: f}, &fake{fates: f})
	defer end()
	if _, err := client.ListModels(t.Context()); err != nil || f.calls != 2 {
		t.Errorf("%v after %d calls", err, f.calls)
	}
}

// lostAtEnd is a router whose connection is lost after the first whole answer.
type lostAtEnd struct {
	*fake
	lost bool
}

func (l *lostAtEnd) Generate(q *inferencev1.GenerateRequest, s grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	if err := l.fake.Generate(q, s); err != nil || l.lost {
		return err
	}
	l.lost = true
	return status.Error(codes.Unavailable, "lost")
}

// A router that is lost when its answer is whole has answered.
func TestLostAfterTheAnswer(t *testing.T) {
	a := &fake{fates: &fates{next: []int{answerTokens + 2}}, drawn: 7, fingerprint: "fp"}
	client, end := connect(t, &lostAtEnd{fake: a}, &lostAtEnd{fake: a, lost: true})
	defer end()
	finished := 0
	err := client.Generate(t.Context(), &inferencev1.GenerateRequest{}, func(e *inferencev1.GenerateEvent) error {
		if e.GetFinished() != nil {
			finished++
		}
		return nil
	})
	if err != nil || finished != 1 {
		t.Errorf("%v, finished %d times", err, finished)
	}
}
