package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// penalized asks for everything whose outcome depends on the tokens before.
func penalized(prompt string, temperature float32, mode inferencev1.Mode) *inferencev1.GenerateRequest {
	q := request(prompt, 60, temperature, mode)
	q.Sampling.TopP = proto.Float32(0.9)
	q.Sampling.RepetitionPenalty = proto.Float32(1.3)
	q.Sampling.PresencePenalty = proto.Float32(0.5)
	q.Sampling.FrequencyPenalty = proto.Float32(0.25)
	q.Sampling.LogitBias = map[uint32]float32{300: 1.5, 301: -100, 17: -3}
	q.Logprobs = proto.Uint32(5)
	q.IgnoreEos = true
	return q
}

// answer is a token stream with what was said of each token, byte for byte.
type answer struct {
	tokens   []uint32
	logprobs [][]byte
	finished *inferencev1.Finished
}

func (a *answer) add(tokens []uint32, logprobs []*inferencev1.TokenLogprobs) error {
	if len(tokens) != len(logprobs) {
		return fmt.Errorf("log probabilities of %d tokens, there are %d", len(logprobs), len(tokens))
	}
	a.tokens = append(a.tokens, tokens...)
	for _, l := range logprobs {
		if n := len(l.GetTop()); n != 5 {
			return fmt.Errorf("%d of the likeliest tokens, asked for 5", n)
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
		if err != nil {
			return err
		}
		a.logprobs = append(a.logprobs, data)
	}
	return nil
}

// differs says where an answer is not the one wanted; empty: nowhere.
func (a *answer) differs(want *answer) string {
	if !slices.Equal(a.tokens, want.tokens) {
		return fmt.Sprintf("tokens %v, want %v", a.tokens, want.tokens)
	}
	for i := range a.logprobs {
		if !bytes.Equal(a.logprobs[i], want.logprobs[i]) {
			return fmt.Sprintf("log probabilities of token %d: %x, want %x", i, a.logprobs[i], want.logprobs[i])
		}
	}
	return ""
}

// askAll runs a request to its end; progress, if set, is told how many tokens came.
func askAll(ctx context.Context, m *clustertest.Client, q *inferencev1.GenerateRequest, progress func(tokens int)) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stream, err := m.Inference.Generate(ctx, q)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return a, nil
		case err != nil:
			return nil, err
		}
		if f := event.GetFinished(); f != nil {
			a.finished = f
		}
		if err := a.add(event.GetTokens().GetTokenIds(), event.GetTokens().GetLogprobs()); err != nil {
			return nil, err
		}
		if progress != nil {
			progress(len(a.tokens))
		}
	}
}

func mustAsk(t *testing.T, m *clustertest.Client, q *inferencev1.GenerateRequest) *answer {
	t.Helper()
	a, err := askAll(t.Context(), m, q, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Penalties, biases and log probabilities are functions of the request and its
// tokens so far: the same tokens, and the same figures beside them, bit for bit,
// disaggregated or on one worker, alone or among others, from the start or gone on
// with after any token.
func TestSamePenaltiesAndLogprobs(t *testing.T) {
	whole := clustertest.Start(t, nil)
	chunked := clustertest.Start(t, smallChunks)
	prompts := []string{"Once upon a time", longPrompt(1)}
	for _, temperature := range []float32{0, 0.8} {
		var want []*answer
		for i, prompt := range prompts {
			want = append(want, mustAsk(t, whole.Client, penalized(prompt, temperature, aggregated)))
			plain := generate(t, whole.Client, request(prompt, 60, temperature, aggregated))
			if slices.Equal(plain.Tokens, want[i].tokens) {
				t.Errorf("temperature %v, prompt %d: penalties change nothing: %v", temperature, i, plain.Tokens)
			}
			if slices.Contains(want[i].tokens, 301) {
				t.Errorf("temperature %v, prompt %d: a forbidden token was drawn", temperature, i)
			}
			testGoesOn(t, whole.Client, penalized(prompt, temperature, aggregated), want[i])
		}
		for _, m := range []*clustertest.Client{whole.Client, chunked.Client} {
			var together sync.WaitGroup
			for i := range 8 {
				together.Go(func() {
					mode := []inferencev1.Mode{disaggregated, aggregated}[i%2]
					got, err := askAll(t.Context(), m, penalized(prompts[i/2%2], temperature, mode), nil)
					if err != nil {
						t.Errorf("%v, temperature %v, prompt %d: %v", mode, temperature, i/2%2, err)
					} else if what := got.differs(want[i/2%2]); what != "" {
						t.Errorf("%v, temperature %v, prompt %d: %s", mode, temperature, i/2%2, what)
					}
				})
			}
			together.Wait()
			m.AwaitIdle(t)
		}
	}
}

// restOf asks a decode worker for the rest of an answer, as a router does when the first worker
// died: of q, whose answer has the tokens all, behind the first so many. Each message goes to add.
func restOf(t *testing.T, m *clustertest.Client, q *inferencev1.GenerateRequest, all []uint32, generated int, stops []uint32, add func(*workerv1.Tokens) error) {
	t.Helper()
	workers, err := m.Workers(controlv1.Role_ROLE_DECODE)
	if err != nil || len(workers) == 0 {
		t.Fatalf("decode workers: %v, %v", workers, err)
	}
	record := workers[0].GetRecord()
	conn, err := rpc.Dial(record.GetAddresses()[0], rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	prompt, err := m.Inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: q.GetPrompt()})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := workerv1.NewDecodeClient(conn).Run(t.Context(), &workerv1.DecodeRequest{
		WorkerEpoch: record.GetEpoch(), PrefillHere: true,
		Task: &workerv1.Task{
			Envelope: &inferencev1.Envelope{RequestId: "gone-on"}, ModelDigest: record.GetModelDigest(),
			TokenIds:  slices.Concat(prompt.GetTokenIds(), all[:generated]),
			Generated: uint32(generated), MaxTokens: q.GetMaxTokens(), Sampling: q.GetSampling(), Logprobs: q.Logprobs,
			StructuredOutput: q.GetStructuredOutput(), StopTokenIds: stops, MinTokens: q.GetMinTokens(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = add(event.GetTokens())
		}
		if err != nil {
			t.Fatalf("after %d tokens: %v", generated, err)
		}
	}
}

// testGoesOn compares what a decode worker gives as the rest of an answer with that.
func testGoesOn(t *testing.T, m *clustertest.Client, q *inferencev1.GenerateRequest, want *answer) {
	t.Helper()
	for _, generated := range []int{1, 7, 59} {
		got := &answer{}
		restOf(t, m, q, want.tokens, generated, nil, func(e *workerv1.Tokens) error {
			return got.add(e.GetTokenIds(), e.GetLogprobs())
		})
		rest := &answer{tokens: want.tokens[generated:]}
		for _, data := range want.logprobs[generated:] {
			rest.logprobs = append(rest.logprobs, withoutText(t, data))
		}
		if what := got.differs(rest); what != "" {
			t.Errorf("gone on with after %d tokens: %s", generated, what)
		}
	}
}

// withoutText is what a worker says, of what a router says.
func withoutText(t *testing.T, data []byte) []byte {
	t.Helper()
	l := new(inferencev1.TokenLogprobs)
	if err := proto.Unmarshal(data, l); err != nil {
		t.Fatal(err)
	}
	if len(l.GetText()) == 0 || len(l.GetTop()[0].GetText()) == 0 {
		t.Errorf("tokens without their bytes: %v", l)
	}
	l.Text, l.Special = nil, false
	for _, top := range l.GetTop() {
		top.Text = nil
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A real worker that is killed half-way leaves no trace in tokens or figures, also where it guessed
// at tokens and the next one does not, or the other way round.
func TestPenaltiesSurviveAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel() // much of it is waiting
	binaries := clustertest.Build(t)
	servers := clustertest.Servers(clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries))
	serve := func(target string, args ...string) *clustertest.Process {
		args = append([]string{"serve", "--target=" + target, "--model=../models/fable", "--kv-memory=64MiB", "--threads=1"}, args...)
		return clustertest.Launch(t, target, binaries.Tandem, append(args, servers...)...)
	}
	m := serve("router", "--listen=127.0.0.1:0").Client(t)
	serve("prefill").AwaitServing(t)
	pool := make(map[string]*clustertest.Process)
	for i, id := range []string{"decode-a", "decode-b", "decode-c", "decode-d"} {
		args := []string{"--id=" + id, "--speculate=" + []string{worker.SpeculateNgram, worker.SpeculateOff, worker.SpeculateDraft, worker.SpeculateOff}[i]}
		if i == 2 {
			args = append(args, "--draft-model="+draftModel)
		}
		pool[id] = serve("decode", args...).AwaitServing(t)
	}
	awaitWorkers(t, m, 5)
	q := penalized(longPrompt(1), 0.8, disaggregated)
	q.MaxTokens = proto.Uint32(250)
	want := mustAsk(t, m, q)
	for range 3 { // the worker may have drawn every token before its death: then there is nothing to survive
		killed := false
		got, err := askAll(t.Context(), m, q, func(received int) {
			if received >= 10 && !killed {
				killed = true
				id := busiest(t, m, controlv1.Role_ROLE_DECODE)
				pool[id].Kill()
				delete(pool, id)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if what := got.differs(want); what != "" {
			t.Fatal(what)
		}
		if got.finished.GetRoute().GetRetries() > 0 {
			return
		}
	}
	t.Error("no request had to be started again: the workers are too fast for this test")
}
