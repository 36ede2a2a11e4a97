package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/rig"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Progress is told, in one line, what was just done.
type Progress func(line string)

// Measure starts a mesh for each transport, one after another, and measures.
func Measure(ctx context.Context, p Plan, said Progress) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r := &Result{Plan: p}
	for _, transport := range p.Transports {
		way, err := p.measure(ctx, transport, said)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", transport, err)
		}
		r.Ways = append(r.Ways, *way)
	}
	r.judge()
	return r, nil
}

func (p Plan) measure(ctx context.Context, transport string, said Progress) (_ *Way, err error) {
	plan := p.Mesh
	plan.Prefill, plan.Decode = 1, 1
	plan.Worker = append(slices.Clone(plan.Worker), "--kv-transport", transport)
	said("starting a mesh whose KV goes over " + transport)
	mesh, err := rig.Start(ctx, plan)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mesh.Stop()) }()
	conn, err := rpc.Dial(mesh.Address, rpc.ClientConfig{Name: "tandem-bench"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := inferencev1.NewInferenceClient(conn)

	var tail, head, exposed, second, ttft, whole []time.Duration
	way := &Way{Transport: transport, Requests: p.Requests}
	prompts := rand.New(rand.NewPCG(p.Seed, 1))
	for i := range p.Warmup + p.Requests {
		prompt := p.prompt(prompts)
		a, err := p.generate(ctx, client, prompt, "", inferencev1.Mode_MODE_DISAGGREGATED)
		if err != nil {
			return nil, errors.Join(err, mesh.Failed())
		}
		if i < p.Warmup {
			continue
		}
		t := a.timings
		tail, exposed, second = append(tail, time.Duration(t.GetTransferTailNs())), append(exposed, time.Duration(t.GetTransferExposedNs())), append(second, time.Duration(t.GetSecondTokenNs()))
		head = append(head, tail[len(tail)-1]-exposed[len(exposed)-1])
		ttft, whole = append(ttft, time.Duration(t.GetTtftNs())), append(whole, time.Duration(t.GetTransferNs()))
		way.KVBytes = max(way.KVBytes, t.GetTransferBytes())
		said(fmt.Sprintf("%s, request %d of %d: committed %v after the last layer", transport, i-p.Warmup+1, p.Requests, tail[len(tail)-1]))
		if i-p.Warmup >= p.Checked {
			continue
		}
		// The decode worker has the KV that came: under another salt it does not find it.
		again, err := p.generate(ctx, client, prompt, "again", inferencev1.Mode_MODE_AGGREGATED)
		if err != nil {
			return nil, errors.Join(err, mesh.Failed())
		}
		if cached := again.usage.GetCachedTokens(); cached != 0 {
			return nil, fmt.Errorf("the request to compare with found %d tokens in a prefix cache and says nothing: this is a bug", cached)
		}
		if !slices.Equal(a.tokens, again.tokens) {
			return nil, fmt.Errorf("served apart a prompt gives the tokens %v, on one worker %v: this is a bug", a.tokens, again.tokens)
		}
		way.Checked++
	}
	way.Tail, way.Head, way.Exposed, way.SecondToken, way.TTFT, way.Transfer = spreadOf(tail), spreadOf(head), spreadOf(exposed), spreadOf(second), spreadOf(ttft), spreadOf(whole)
	return way, nil
}

// prompt is one that no other begins like, so that no prefix cache helps.
func (p Plan) prompt(from *rand.Rand) []uint32 {
	tokens := make([]uint32, p.PromptTokens)
	for i := range tokens {
		tokens[i] = uint32(from.IntN(p.Vocabulary))
	}
	return tokens
}

// answer is what one request gave.
type answer struct {
	tokens  []uint32
	timings *inferencev1.Timings
	usage   *inferencev1.Usage
}

func (p Plan) generate(ctx context.Context, client inferencev1.InferenceClient, prompt []uint32, salt string, mode inferencev1.Mode) (*answer, error) {
	most, greedy := uint32(p.OutputTokens), float32(0)
	stream, err := client.Generate(ctx, &inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: prompt}},
		MaxTokens: &most, Mode: mode, Sampling: &inferencev1.Sampling{Temperature: &greedy}, IgnoreEos: true, CacheSalt: salt,
	})
	if err != nil {
		return nil, err
	}
	a := new(answer)
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && a.timings != nil:
			return a, nil
		case err != nil:
			return nil, err
		}
		a.tokens = append(a.tokens, event.GetTokens().GetTokenIds()...)
		if finished := event.GetFinished(); finished != nil {
			a.timings, a.usage = finished.GetTimings(), finished.GetUsage()
			if got := finished.GetRoute().GetMode(); got != mode {
				return nil, fmt.Errorf("a request was served %v instead of %v: %s", got, mode, finished.GetRoute().GetReason())
			}
		}
	}
}
