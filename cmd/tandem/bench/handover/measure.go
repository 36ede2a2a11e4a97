// Package handover measures the whole path of KV from one worker to another. It serves
// prompts on a mesh of a router, a prefill and a decode worker, each in its own process, and
// again on one worker. The tokens must be equal.
//
// The command line imports it. Measure owns the meshes that it starts and stops them.
package handover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Progress gets one line for each step that is done.
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
	mesh, err := processes.Start(ctx, plan)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mesh.Stop()) }()
	apart, err := client.NewTandem(client.TandemConfig{Address: mesh.Address, Mode: inferencev1.Mode_MODE_DISAGGREGATED})
	if err != nil {
		return nil, err
	}
	defer apart.Close()
	together, err := client.NewTandem(client.TandemConfig{Address: mesh.Address, Mode: inferencev1.Mode_MODE_AGGREGATED})
	if err != nil {
		return nil, err
	}
	defer together.Close()

	var tail, head, exposed, second, ttft, whole []time.Duration
	way := &Way{Transport: transport, Requests: p.Requests}
	prompts := rand.New(rand.NewPCG(p.Seed, 1))
	for i := range p.Warmup + p.Requests {
		prompt := p.prompt(prompts)
		tokens, r, err := p.generate(ctx, apart, prompt, "", inferencev1.Mode_MODE_DISAGGREGATED)
		if err != nil {
			return nil, errors.Join(err, mesh.Failed())
		}
		if i < p.Warmup {
			continue
		}
		t := r.Timings
		tail, exposed, second = append(tail, time.Duration(t.GetTransferTailNs())), append(exposed, time.Duration(t.GetTransferExposedNs())), append(second, time.Duration(t.GetSecondTokenNs()))
		head = append(head, tail[len(tail)-1]-exposed[len(exposed)-1])
		ttft, whole = append(ttft, time.Duration(t.GetTtftNs())), append(whole, time.Duration(t.GetTransferNs()))
		way.KVBytes = max(way.KVBytes, t.GetTransferBytes())
		said(fmt.Sprintf("%s, request %d of %d: committed %v after the last layer", transport, i-p.Warmup+1, p.Requests, tail[len(tail)-1]))
		if i-p.Warmup >= p.Checked {
			continue
		}
		// Another salt keeps the decode worker from finding the KV that it received.
		again, r, err := p.generate(ctx, together, prompt, "again", inferencev1.Mode_MODE_AGGREGATED)
		if err != nil {
			return nil, errors.Join(err, mesh.Failed())
		}
		if r.CachedTokens != 0 {
			return nil, fmt.Errorf("the request to compare with found %d tokens in a prefix cache, so it proves nothing: this is a bug", r.CachedTokens)
		}
		if !slices.Equal(tokens, again) {
			return nil, fmt.Errorf("a prompt gives the tokens %v on two workers, and %v on one: this is a bug", tokens, again)
		}
		way.Checked++
	}
	way.Tail, way.Head, way.Exposed, way.SecondToken, way.TTFT, way.Transfer = spreadOf(tail), spreadOf(head), spreadOf(exposed), spreadOf(second), spreadOf(ttft), spreadOf(whole)
	return way, nil
}

// prompt makes prompts that share no prefix, so that no prefix cache helps.
func (p Plan) prompt(from *rand.Rand) []uint32 {
	tokens := make([]uint32, p.PromptTokens)
	for i := range tokens {
		tokens[i] = uint32(from.IntN(p.Vocabulary))
	}
	return tokens
}

// generate returns the tokens of one request in the given mode.
func (p Plan) generate(ctx context.Context, to client.Client, prompt []uint32, salt string, mode inferencev1.Mode) ([]uint32, *record.Record, error) {
	r := new(record.Record)
	answer := to.Do(ctx, &workload.Request{
		Prompt: workload.Prompt{TokenIDs: prompt}, MaxTokens: p.OutputTokens, Exact: true, CacheSalt: salt,
		Then: func(workload.Answer) (*workload.Request, time.Duration) { return nil, 0 }, // keeps the answer
	}, client.NewClock(time.Now()), r)
	switch got := r.Route.GetMode(); {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case r.Outcome != record.Completed:
		return nil, nil, fmt.Errorf("%s: %s", r.Code, r.Error)
	case got != mode:
		return nil, nil, fmt.Errorf("a request was served %v instead of %v: %s", got, mode, r.Route.GetReason())
	case r.Timings == nil:
		return nil, nil, errors.New("the router sent no timings")
	}
	return answer.TokenIDs, r, nil
}
