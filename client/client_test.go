package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// check reads an answer and compares it with the whole one.
func check(t *testing.T, where string, c *client.Client, q *inferencev1.GenerateRequest, seed uint64) {
	t.Helper()
	var text strings.Builder
	offset, finished := 0, 0
	for token, err := range c.Generate(t.Context(), q) {
		if err != nil {
			t.Errorf("%s: %v after %d tokens", where, err, offset)
			return
		}
		text.WriteString(token.Text)
		switch {
		case token.Finished != nil:
			finished++
			if token.Finished.GetUsage().GetCompletionTokens() != answerTokens || int(token.Offset) != answerTokens {
				t.Errorf("%s: it ends with %v at %d", where, token.Finished, token.Offset)
			}
		case token.ID != tokenOf(seed, offset) || int(token.Offset) != offset || token.Logprobs.GetLogprob() != -float32(offset) || token.Accepted.GetSeed() != seed || finished != 0:
			t.Errorf("%s: token %d is %v", where, offset, token)
			return
		default:
			offset++
		}
	}
	if want := wholeText(seed) + " end"; offset != answerTokens || finished != 1 || text.String() != want {
		t.Errorf("%s: %d tokens, finished %d times, text %q, want %q", where, offset, finished, text.String(), want)
	}
}

// Wherever routers are lost, and however they put tokens together, the answer is the whole one,
// each token once.
func TestAnswersGoOnElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &routers{}
		c, end := connect(t, nil, &router{mesh: m, drawn: 7, fingerprint: "fp"}, &router{mesh: m, drawn: 8, fingerprint: "fp", batch: 5}, &router{mesh: m, drawn: 9, fingerprint: "fp", batch: 2, forgets: true})
		defer end()
		for first := range answerTokens + 3 {
			for second := range answerTokens + 3 {
				for _, q := range []*inferencev1.GenerateRequest{client.Prompt("x"), {Sampling: &inferencev1.Sampling{Seed: proto.Uint64(4)}}, {ResumableFor: durationpb.New(time.Minute), Sampling: &inferencev1.Sampling{Temperature: proto.Float32(1)}}} {
					m.calls, m.fates = nil, []fate{{first, errLost}, {second, errLost}}
					sent := proto.CloneOf(q)
					var before string
					// Who is first draws the seed, unless it is lost before it says so.
					seed := uint64(0)
					for token, err := range c.Generate(t.Context(), q) {
						if err != nil {
							t.Fatal(err)
						}
						seed = token.Accepted.GetSeed()
						before += token.Text
					}
					if !proto.Equal(q, sent) {
						t.Fatal("the request was changed")
					}
					if before != wholeText(seed)+" end" {
						t.Fatalf("lost after %d and %d events: %q", first, second, before)
					}
					for _, call := range m.calls[1:] {
						if call.seed != 0 && call.seed != seed {
							t.Fatalf("the calls %v of one answer have several seeds", m.calls)
						}
					}
					m.fates = []fate{{first, errLost}, {second, errLost}}
					pinned := proto.CloneOf(q)
					pinned.Sampling = &inferencev1.Sampling{Seed: proto.Uint64(5)}
					check(t, fmt.Sprint(first, second), c, pinned, 5)
				}
			}
		}
	})
}

// A stream that a router keeps is resumed, there or, if it is lost, where another knows it: nothing is
// computed again. One that is forgotten or given up, that failed, or whose router is lost, is.
func TestResume(t *testing.T) {
	broken, failed := fate{5, errLost}, statusOf(codes.Unavailable, "WORKER_LOST", time.Second)
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			name             string
			aForgets, bKnows bool
			fates            []fate
			waits            time.Duration // at least
			want             []string
		}{
			{name: "both know it", bKnows: true, fates: []fate{broken, {0, errLost}}, want: []string{"aGenerate0", "aResume4", "bResume4"}},
			{name: "one knows it", fates: []fate{broken}, want: []string{"aGenerate0", "aResume4"}},
			{name: "one knows it and breaks again", fates: []fate{broken, {3, errLost}}, want: []string{"aGenerate0", "aResume4", "aResume6"}},
			{name: "one knows it and is lost", fates: []fate{broken, {0, errLost}}, want: []string{"aGenerate0", "aResume4", "bResume4", "bGenerate0"}},
			{name: "forgotten", aForgets: true, fates: []fate{broken}, want: []string{"aGenerate0", "aResume4", "bResume4", "bGenerate0"}},
			{name: "the second answer breaks", fates: []fate{broken, {0, errLost}, {}, {6, errLost}}, want: []string{"aGenerate0", "aResume4", "bResume4", "bGenerate0", "bResume5", "aResume5"}},
			{name: "the second answer breaks before it is further", fates: []fate{broken, {0, errLost}, {}, {5, errLost}}, want: []string{"aGenerate0", "aResume4", "bResume4", "bGenerate0", "aGenerate0"}},
			{name: "it failed", bKnows: true, fates: []fate{{5, failed}}, want: []string{"aGenerate0", "bGenerate0"}},
			{name: "it failed after it broke", bKnows: true, fates: []fate{broken, {1, failed}}, want: []string{"aGenerate0", "aResume4", "aGenerate0"}},
			{name: "it failed after it broke, as another router says", bKnows: true, fates: []fate{broken, {0, errLost}, {1, failed}}, want: []string{"aGenerate0", "aResume4", "bResume4", "aGenerate0"}},
			{name: "a router refuses to resume", bKnows: true, fates: []fate{broken, {0, failed}}, want: []string{"aGenerate0", "aResume4", "bResume4"}},
			{name: "nobody read it for too long", fates: []fate{broken, {3, statusOf(codes.Canceled, "CLIENT_GONE", 0)}}, want: []string{"aGenerate0", "aResume4", "bGenerate0"}},
			{name: "nobody read it for too long, as another router says", bKnows: true, fates: []fate{broken, {0, errLost}, {1, statusOf(codes.Canceled, "CLIENT_GONE", 0)}}, want: []string{"aGenerate0", "aResume4", "bResume4", "bGenerate0"}},
			{name: "it was cut off", fates: []fate{broken, {0, statusOf(codes.ResourceExhausted, "UNREAD", time.Second)}}, waits: time.Second, want: []string{"aGenerate0", "aResume4", "aGenerate0"}},
			{name: "it was cut off in the middle", fates: []fate{broken, {3, statusOf(codes.ResourceExhausted, "UNREAD", time.Second)}}, waits: time.Second, want: []string{"aGenerate0", "aResume4", "aGenerate0"}},
		} {
			m := &routers{fates: x.fates}
			c, end := connect(t, nil, &router{mesh: m, forgets: x.aForgets}, &router{mesh: m, forgets: !x.bKnows})
			q := client.Chat(client.System("be brief"), client.User("hello"))
			q.ResumableFor = durationpb.New(time.Minute)
			q.Sampling = &inferencev1.Sampling{Seed: proto.Uint64(3)}
			began := time.Now()
			check(t, x.name, c, q, 3)
			var said []string
			for _, call := range m.calls {
				said = append(said, fmt.Sprint(call.router, call.method, call.offset))
			}
			if took := time.Since(began); !slices.Equal(said, x.want) || took < x.waits {
				t.Errorf("%s: calls %v in %v, want %v", x.name, said, took, x.want)
			}
			end()
		}
	})
}

// A router refuses for a while. The other one takes the request, and its stream breaks: it goes on there after the
// usual pause.
func TestResumesBesideABusyRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &routers{fates: []fate{{0, statusOf(codes.Unavailable, "NO_WORKERS", 30*time.Second)}, {5, errLost}}}
		c, end := connect(t, nil, &router{mesh: m}, &router{mesh: m})
		defer end()
		began := time.Now()
		check(t, "the answer", c, &inferencev1.GenerateRequest{ResumableFor: durationpb.New(time.Minute)}, 0)
		last := m.calls[len(m.calls)-1]
		if took := time.Since(began); len(m.calls) != 3 || last.router != m.calls[1].router || last.method != "Resume" || took > 100*time.Millisecond {
			t.Errorf("calls %v in %v", m.calls, took)
		}
	})
}

// An answer that is larger than a router holds of one would be cut off again.
func TestTooLargeToResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &routers{fates: []fate{{5, errLost}, {3, statusOf(codes.ResourceExhausted, "UNREAD", 0)}}}
		c, end := connect(t, nil, &router{mesh: m}, &router{mesh: m})
		defer end()
		answer, err := client.Collect(c.Generate(t.Context(), &inferencev1.GenerateRequest{ResumableFor: durationpb.New(time.Minute)}))
		if client.Reason(err) != "UNREAD" || len(m.calls) != 2 || len(answer.TokenIDs) != 6 {
			t.Errorf("%v after %d tokens in %d calls", err, len(answer.TokenIDs), len(m.calls))
		}
	})
}

// The log probabilities of a prompt come once, wherever routers are lost.
func TestPromptLogprobsComeOnce(t *testing.T) {
	const prompt = 7
	synctest.Test(t, func(t *testing.T) {
		m := &routers{}
		c, end := connect(t, nil, &router{mesh: m, prompt: prompt, batch: 2}, &router{mesh: m, prompt: prompt, batch: 5}, &router{mesh: m, prompt: prompt, forgets: true})
		defer end()
		for first := range prompt + 4 {
			for second := range prompt + 4 {
				for _, q := range []*inferencev1.GenerateRequest{client.Prompt("x"), {ResumableFor: durationpb.New(time.Minute)}} {
					m.fates = []fate{{first, errLost}, {second, errLost}}
					var got []uint32
					for event, err := range c.Events(t.Context(), q) {
						if err != nil {
							t.Fatal(err)
						}
						scores := event.GetPromptLogprobs()
						for i, id := range scores.GetTokenIds() {
							if int(scores.GetOffset())+i != len(got) || scores.GetLogprobs()[i].GetLogprob() != -float32(id) {
								t.Fatalf("lost after %d and %d events: %v after %v", first, second, scores, got)
							}
							got = append(got, id)
						}
					}
					want := []uint32{0, 1, 2, 3, 4, 5, 6}
					if !slices.Equal(got, want) {
						t.Fatalf("lost after %d and %d events: %v", first, second, got)
					}
					m.fates = []fate{{first, errLost}, {second, errLost}}
					answer, err := client.Collect(c.Generate(t.Context(), q))
					if err != nil {
						t.Fatal(err)
					}
					if scores := answer.PromptLogprobs; !slices.Equal(scores.GetTokenIds(), want) || len(scores.GetLogprobs()) != prompt || scores.GetLogprobs()[6].GetLogprob() != -6 {
						t.Fatalf("lost after %d and %d events: an answer with %v", first, second, scores)
					}
				}
			}
		}
	})
}

// What is sent again, how often, and after which wait.
func TestRetries(t *testing.T) {
	refused := func(code codes.Code, wait time.Duration) fate { return fate{0, statusOf(code, "X", wait)} }
	many := func(f fate) (all []fate) {
		for range 100 {
			all = append(all, f)
		}
		return all
	}
	breaks := func(after ...int) (all []fate) {
		for _, events := range after {
			all = append(all, fate{events, errLost})
		}
		return all
	}
	fails := func(after ...int) (all []fate) {
		for _, events := range after {
			all = append(all, fate{events, statusOf(codes.Unavailable, "WORKER_LOST", time.Second)})
		}
		return all
	}
	for _, c := range []struct {
		name     string
		routers  int
		fates    []fate
		options  []client.Option
		deadline time.Duration
		code     codes.Code
		calls    int
		// between the first and the last call
		least, most time.Duration
	}{
		{"all routers at once", 3, []fate{refused(codes.Unavailable, 0), refused(codes.Unavailable, time.Hour)}, nil, 0, codes.OK, 3, 0, 0},
		{"a pause after each round", 1, []fate{refused(codes.Unavailable, 0), refused(codes.Unavailable, 0)}, nil, 0, codes.OK, 3, 150 * time.Millisecond, 300 * time.Millisecond},
		{"so long as it takes", 2, many(refused(codes.Unavailable, 0)), nil, 0, codes.Unavailable, 10, 750 * time.Millisecond, 1500 * time.Millisecond},
		{"as often as allowed", 2, many(refused(codes.Unavailable, 0)), []client.Option{client.WithAttempts(3)}, 0, codes.Unavailable, 3, 50 * time.Millisecond, 100 * time.Millisecond},
		{"as long as it asks", 1, []fate{refused(codes.Unavailable, 10*time.Second)}, nil, 0, codes.OK, 2, 10 * time.Second, 10050 * time.Millisecond},
		{"as long as any of a round asks", 2, []fate{refused(codes.Unavailable, 10*time.Second), refused(codes.Unavailable, 0)}, nil, 0, codes.OK, 3, 10 * time.Second, 10050 * time.Millisecond},
		{"what the last round asked is over", 2, []fate{refused(codes.Unavailable, 10*time.Second), refused(codes.Unavailable, 0), refused(codes.Unavailable, 0), refused(codes.Unavailable, 0)}, nil, 0, codes.OK, 5, 10100 * time.Millisecond, 10250 * time.Millisecond},
		{"one of a round asks for too much", 2, []fate{refused(codes.Unavailable, time.Minute), refused(codes.Unavailable, 0)}, nil, 0, codes.Unavailable, 2, 0, 0},
		{"what was asked before the answer went on is over", 2, []fate{refused(codes.Unavailable, 20*time.Second), {4, errLost}}, nil, 0, codes.OK, 3, 50 * time.Millisecond, 100 * time.Millisecond},
		{"too much was asked before the answer went on", 2, []fate{refused(codes.Unavailable, time.Minute), {4, errLost}}, nil, 0, codes.OK, 3, 50 * time.Millisecond, 100 * time.Millisecond},
		{"what is asked after the answer went on", 2, []fate{refused(codes.Unavailable, 20*time.Second), {4, statusOf(codes.Unavailable, "WORKER_LOST", time.Second)}}, nil, 0, codes.OK, 3, time.Second, 1050 * time.Millisecond},
		{"exhausted, as long as it asks", 2, []fate{refused(codes.ResourceExhausted, 4*time.Second)}, nil, 0, codes.OK, 2, 4 * time.Second, 4050 * time.Millisecond},
		{"exhausted for good", 2, []fate{refused(codes.ResourceExhausted, 0)}, nil, 0, codes.ResourceExhausted, 1, 0, 0},
		{"it asks for too much", 1, []fate{refused(codes.ResourceExhausted, time.Minute)}, nil, 0, codes.ResourceExhausted, 1, 0, 0},
		{"that much may be", 1, []fate{refused(codes.ResourceExhausted, time.Minute)}, []client.Option{client.WithLongestWait(time.Hour)}, 0, codes.OK, 2, time.Minute, 61 * time.Second},
		{"pauses are not refusals", 1, many(refused(codes.Unavailable, 0)), []client.Option{client.WithLongestWait(10 * time.Millisecond)}, 0, codes.Unavailable, 5, 20 * time.Millisecond, 40 * time.Millisecond},
		{"exactly as much as may be", 1, []fate{refused(codes.ResourceExhausted, time.Minute)}, []client.Option{client.WithLongestWait(time.Minute)}, 0, codes.OK, 2, time.Minute, 60050 * time.Millisecond},
		{"no wait at all", 2, many(refused(codes.Unavailable, 0)), []client.Option{client.WithLongestWait(-time.Second)}, 0, codes.Unavailable, 2, 0, 0},
		{"hardly a wait", 1, many(refused(codes.Unavailable, 0)), []client.Option{client.WithLongestWait(time.Nanosecond)}, 0, codes.Unavailable, 5, 0, 4 * time.Nanosecond},
		{"it asks for more than is left", 1, []fate{refused(codes.ResourceExhausted, 5*time.Second)}, nil, 4 * time.Second, codes.ResourceExhausted, 1, 0, 0},
		{"exhausted in the middle", 2, []fate{{4, statusOf(codes.ResourceExhausted, "NOT_READ", time.Second)}}, nil, 0, codes.ResourceExhausted, 1, 0, 0},
		{"the mesh has tried enough", 2, []fate{{4, statusOf(codes.Unavailable, "RETRY_BUDGET", time.Second)}}, nil, 0, codes.Unavailable, 1, 0, 0},
		{"an answer that breaks often and goes on each time", 2, breaks(2, 3, 4, 5, 6, 7, 8, 9), []client.Option{client.WithAttempts(2)}, 0, codes.OK, 9, 200 * time.Millisecond, 400 * time.Millisecond},
		{"an answer that goes on each time, with no wait at all", 2, breaks(2, 3, 4, 5, 6, 7, 8, 9), []client.Option{client.WithLongestWait(0)}, 0, codes.OK, 9, 0, 0},
		{"an answer that fails often and goes on each time", 2, fails(2, 3, 4, 5), nil, 0, codes.OK, 5, 2 * time.Second, 2100 * time.Millisecond},
		{"an answer that breaks often and goes on at one router", 1, breaks(2, 3, 4, 5, 6, 7, 8, 9), nil, 0, codes.OK, 9, 400 * time.Millisecond, 800 * time.Millisecond},
		{"an answer that breaks often at one place", 2, breaks(2, 3, 4, 4, 4, 4, 4, 4, 4, 4), []client.Option{client.WithAttempts(3)}, 0, codes.Unavailable, 5, 100 * time.Millisecond, 200 * time.Millisecond},
		{"wrong request", 2, []fate{refused(codes.InvalidArgument, time.Second)}, nil, 0, codes.InvalidArgument, 1, 0, 0},
		{"lost after the end", 2, []fate{{answerTokens + 2, errLost}}, nil, 0, codes.OK, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &routers{fates: c.fates}
				var all []*router
				for range c.routers {
					all = append(all, &router{mesh: m})
				}
				cl, end := connect(t, c.options, all...)
				defer end()
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				answer, err := client.Collect(cl.Generate(ctx, client.TokenIDs(1, 2)))
				took := m.calls[len(m.calls)-1].at.Sub(m.calls[0].at)
				if status.Code(err) != c.code || len(m.calls) != c.calls || took < c.least || took > c.most {
					t.Errorf("%v after %d calls in %v, want %v after %d in %v to %v", err, len(m.calls), took, c.code, c.calls, c.least, c.most)
				}
				if err == nil && (len(answer.TokenIDs) != answerTokens || len(answer.Logprobs) != answerTokens || answer.Text != wholeText(0)+" end" || answer.Finished == nil) {
					t.Errorf("the answer is %v", answer)
				}
			})
		})
	}
}

// An answer never goes on with other tokens than those of the same weights.
func TestOtherAnswers(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		other        router
	}{
		{"other weights", "OTHER_VERSION", router{fingerprint: "b"}},
		{"other tokens", "OTHER_TOKENS", router{fingerprint: "a", flawed: true}},
		{"an answer that ends earlier", "OTHER_TOKENS", router{fingerprint: "a", short: answerTokens - 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &routers{fates: []fate{{3, errLost}}}
			c.other.mesh = m
			cl, end := connect(t, nil, &router{mesh: m, fingerprint: "a"}, &c.other)
			defer end()
			answer, err := client.Collect(cl.Generate(t.Context(), client.Prompt("x")))
			if status.Code(err) != codes.DataLoss || client.Reason(err) != c.reason || len(answer.TokenIDs) != 2 {
				t.Errorf("%s: %v after %v", c.name, err, answer.TokenIDs)
			}
		})
	}
}

// Who leaves the loop, or whose context ends, is gone at the server at once.
func TestLeaving(t *testing.T) {
	for _, how := range []string{"break", "cancel", "deadline", "cancel in a pause", "panic"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &routers{}
				// More than the connection holds, so that the router is still sending.
				c, end := connect(t, nil, &router{mesh: m, padding: 2 << 20})
				defer end() // the bubble has no other goroutines then, or the test fails
				if how == "cancel in a pause" {
					m.fates = []fate{{0, statusOf(codes.Unavailable, "X", 20*time.Second)}}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				var last error
				func() {
					defer func() { _ = recover() }()
					if how == "cancel in a pause" {
						time.AfterFunc(3*time.Second, cancel)
					}
					for token, err := range c.Generate(ctx, client.Prompt("x")) {
						if last = err; err != nil || token.Offset != 1 {
							continue
						}
						switch how {
						case "break":
							return
						case "panic":
							panic("the caller's")
						case "cancel":
							cancel()
						case "deadline":
							time.Sleep(2 * time.Hour) // of the bubble
						}
					}
				}()
				synctest.Wait()
				m.mu.Lock()
				defer m.mu.Unlock()
				want := map[string]codes.Code{"cancel": codes.Canceled, "deadline": codes.DeadlineExceeded, "cancel in a pause": codes.Canceled}[how]
				if status.Code(last) != want {
					t.Errorf("the loop ended with %v", last)
				}
				if how == "cancel in a pause" {
					if took := time.Since(began); took != 3*time.Second {
						t.Errorf("it waited for %v", took)
					}
					return
				}
				if m.cancelled != 1 || m.sent >= answerTokens {
					t.Errorf("the router was told of %d cancels, and sent %d tokens", m.cancelled, m.sent)
				}
			})
		})
	}
}

// A slow reader holds its router back, and gets everything.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &routers{}
		c, end := connect(t, nil, &router{mesh: m, padding: 2 << 20})
		defer end()
		tokens, bytes := 0, 0
		for token, err := range c.Generate(t.Context(), client.Prompt("x")) {
			if err != nil {
				t.Fatal(err)
			}
			if tokens == 0 {
				time.Sleep(time.Hour) // of the bubble
				m.mu.Lock()
				if m.sent >= answerTokens {
					t.Error("the router sent everything to who reads nothing")
				}
				m.mu.Unlock()
			}
			bytes += len(token.Text)
			if token.Finished == nil {
				tokens++
			}
		}
		if want := len(heldText(0, answerTokens, 2<<20)) + len(" end"); tokens != answerTokens || bytes != want {
			t.Errorf("%d tokens and %d bytes, want %d", tokens, bytes, want)
		}
	})
}

func TestOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &routers{}
		c, end := connect(t, []client.Option{client.WithToken("key")}, &router{mesh: m}, &router{mesh: m})
		defer end()
		m.fates = []fate{{0, errLost}}
		if r, err := c.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: "four"}); err != nil || !slices.Equal(r.GetTokenIds(), []uint32{4}) {
			t.Errorf("%v, %v", r, err)
		}
		m.fates = []fate{{0, statusOf(codes.ResourceExhausted, "TENANT_LIMIT", time.Second)}}
		if r, err := c.Detokenize(t.Context(), &inferencev1.DetokenizeRequest{TokenIds: []uint32{1, 2}}); err != nil || r.GetText() != "[1 2]" {
			t.Errorf("%v, %v", r, err)
		}
		if r, err := c.ListModels(t.Context()); err != nil || r.GetModels()[0].GetName() != "fable" {
			t.Errorf("%v, %v", r, err)
		}
		for _, call := range m.calls {
			if call.token != "Bearer key" {
				t.Errorf("%s came with the token %q", call.method, call.token)
			}
		}
		if len(m.calls) != 5 {
			t.Errorf("%d calls", len(m.calls))
		}
	})
}

func TestAddresses(t *testing.T) {
	for _, addresses := range [][]string{nil, {""}, {"host"}, {"host:"}, {":7070"}, {"http://host:1"}, {"a:1", "b"}} {
		if c, err := client.New(addresses); err == nil {
			t.Errorf("%q is taken", addresses)
			_ = c.Close()
		}
	}
	c, err := client.New([]string{"host:7070", "[::1]:7070", "unix:///run/tandem.sock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
