package router

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// Measure does all of it for a model, whose tokenizer the router uses and whose weights nobody
// reads. said is told in one line what is done next.
func Measure(ctx context.Context, p Plan, spec model.Spec, words *tokenizer.Tokenizer, said func(line string)) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := p.FitsContext(spec.Name, spec.ContextTokens); err != nil {
		return nil, err
	}
	r := &Result{Workers: p.Workers, Streams: p.Streams, Connections: p.connections(), PrefixBlocks: p.PrefixBlocks, API: "grpc", TLS: p.TLS, Auth: p.Auth, Tokens: p.Tokens, PromptTokens: p.PromptTokens, PlannedTokensPerS: p.planned()}
	if p.OpenAI {
		r.API = "openai"
	}
	said(fmt.Sprintf("timing %d decisions among %d workers with %d blocks in their prefix caches", p.Decisions, p.Workers, p.PrefixBlocks))
	if err := decisions(ctx, p, r); err != nil {
		return nil, err
	}
	if err := p.relay(ctx, spec, script(words), r, said); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// story is what every answer says, over and over: plain words, each token a piece of text.
const story = " once upon a time there was a little dog who liked to run in the park"

func script(words *tokenizer.Tokenizer) []uint32 {
	var ids []uint32
	for _, id := range words.Encode(story, false) {
		ids = append(ids, uint32(id))
	}
	return ids
}

// relay measures a router process.
func (p Plan) relay(ctx context.Context, spec model.Spec, script []uint32, r *Result, said func(string)) (err error) {
	b := newSendTimes()
	var secure *security
	if p.TLS {
		if secure, err = newSecurity(p.Auth); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, secure.close()) }()
	f := newFleet(p, spec, script, b, secure)
	plan := p.Mesh
	plan.Operator = secure.operator()
	plan.Join = f.join
	most := strconv.Itoa(p.Streams + 64)
	plan.Arguments = append(slices.Clone(plan.Arguments),
		"--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--router-max-connections", most, "--router-tenant-max-requests", most, "--default-class", "batch",
		"--trace-endpoint", "none", "--router-state-dir", "off")
	plan.Arguments = append(plan.Arguments, secure.router()...)
	said(fmt.Sprintf("starting the router and %d workers", p.Workers))
	var mesh *processes.Mesh
	defer func() {
		err = errors.Join(err, f.stop())
		if mesh != nil {
			err = errors.Join(err, mesh.Stop())
		}
	}()
	if mesh, err = processes.Start(ctx, plan); err != nil {
		return err
	}
	prompt := make([]uint32, p.PromptTokens)
	for i := range prompt {
		prompt[i] = script[i%len(script)]
	}
	l := newLoad(p, b, func() (client, error) { return newGRPCClient(mesh.Address, secure, p.ClientProbes, b, prompt) })
	if p.OpenAI {
		l.dial = func() (client, error) { return newSSEClient(ctx, mesh.HTTP, spec.Name, secure, b, prompt) }
	}
	said(fmt.Sprintf("measuring %d streams of %d tokens, one every %v, for %v", p.Streams, p.Tokens, p.Gap, p.Duration))
	running, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- l.run(running) }()
	err = p.window(ctx, mesh, l, failed, r)
	stop()
	if err := errors.Join(err, <-failed); err != nil { // the streams have ended
		return errors.Join(err, mesh.Failed())
	}
	r.AddedTTFTMsP50, r.AddedTTFTMsP99 = stats.Milliseconds(l.ttft.Quantile(.5)), stats.Milliseconds(l.ttft.Quantile(.99))
	r.AddedTokenUsP50, r.AddedTokenUsP99 = microseconds(l.delay.Quantile(.5)), microseconds(l.delay.Quantile(.99))
	return ctx.Err()
}

// startTimeout is how long all streams may take to begin.
const startTimeout = time.Minute

// window waits until all streams run, and measures then.
func (p Plan) window(ctx context.Context, mesh *processes.Mesh, l *load, failed chan error, r *Result) error {
	wait := func(d time.Duration) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return mesh.Failed()
		case err := <-failed:
			failed <- nil // who reads it next learns nothing new
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := wait(p.rampUp() + warmup); err != nil {
		return err
	}
	// Where connections take longer than that, with TLS or on a busy machine, handshakes would be
	// measured instead of tokens.
	for deadline := time.Now().Add(startTimeout); l.running.Load() < int64(p.Streams); {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d streams have a token after %v: this machine is too small or too busy; pass fewer --streams or a longer --itl", l.running.Load(), p.Streams, startTimeout)
		}
		if err := wait(warmup); err != nil {
			return err
		}
	}
	allocated, err := mallocs(ctx, mesh.Metrics)
	if err != nil {
		return err
	}
	before, err := usedNow(mesh)
	if err != nil {
		return err
	}
	began := time.Now()
	l.measuring.Store(true)
	if err := wait(p.Duration); err != nil {
		return err
	}
	l.measuring.Store(false)
	r.Seconds = time.Since(began).Seconds()
	after, err := usedNow(mesh)
	if err != nil {
		return err
	}
	allocatedAfter, err := mallocs(ctx, mesh.Metrics)
	if err != nil {
		return err
	}
	resident, known := memory.Resident(os.DirFS("/"), mesh.RouterPID())
	if !known {
		return fmt.Errorf("memory of the router: /proc/%d/status does not say", mesh.RouterPID())
	}
	tokens, router := float64(l.tokens.Load()), after.router-before.router
	r.TokensPerS = tokens / r.Seconds
	if router > 0 {
		r.TokensPerCPUS = tokens / router
	}
	r.RouterCPUs, r.ClientCPUs = router/r.Seconds, (after.here-before.here)/r.Seconds
	if tokens > 0 {
		r.AllocationsPerToken = (allocatedAfter - allocated) / tokens
		r.CPUMsPerRequest = 1000 * router / tokens * float64(p.Tokens)
	}
	r.RequestsPerS, r.RSSMBytes = float64(l.requests.Load())/r.Seconds, float64(resident)/1e6
	return nil
}

// used is processor time, seconds.
type used struct{ router, here float64 }

func usedNow(mesh *processes.Mesh) (u used, err error) {
	if u.router, err = processor.CPUSeconds(mesh.RouterPID()); err != nil {
		return u, err
	}
	u.here, err = processor.CPUSeconds(os.Getpid())
	return u, err
}
