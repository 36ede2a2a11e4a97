package swarmtest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/simulate"
)

const (
	// requestTimeout is the longest wait of a client.
	requestTimeout = time.Minute
	// drainTimeout is longer than requestTimeout.
	drainTimeout = 2 * time.Minute
)

// Result is the outcome of a script.
type Result struct {
	// Violation is the first invariant that did not hold; nil if all did.
	Violation *simulate.Violation
	// Codes counts requests by their status.
	Codes map[codes.Code]int
	// Hedges counts hedged attempts.
	Hedges simulate.Hedges
}

// answer is the answer that a client got.
type answer struct {
	tokens []uint32
	err    error
	ended  bool
}

// Run runs a script. An error means that the script is wrong; a broken invariant is in the
// result.
func Run(s *Script) (*Result, error) { return run(s, func(int, *answer) {}) }

// run lets a test change the answers before they are judged.
func run(s *Script, change func(request int, a *answer)) (*Result, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	got, hedges, violation, err := s.play(change)
	if err != nil {
		return nil, err
	}
	r := &Result{Violation: violation, Codes: make(map[codes.Code]int), Hedges: hedges}
	for _, a := range got {
		r.Codes[status.Code(a.err)]++
	}
	if violation != nil {
		return r, nil
	}
	want, _, violation, err := s.alone().play(func(int, *answer) {})
	if err != nil {
		return nil, fmt.Errorf("the script without faults, on one worker: %w", err)
	}
	if violation != nil {
		violation.Detail += "; without faults, on one worker"
		r.Violation = violation
		return r, nil
	}
	for i, a := range got {
		if err := s.judge(i, a, want[i]); err != nil {
			r.Violation = &simulate.Violation{At: ms(s.Requests[i].AtMs), Invariant: err.invariant, Detail: fmt.Sprintf("request %d: %s", i+1, err.detail)}
			break
		}
	}
	return r, nil
}

// alone serves the script's requests on one worker with enough blocks for all, without faults.
func (s *Script) alone() *Script {
	calm := *s
	calm.Faults, calm.Routers, calm.Mode, calm.Policy, calm.LatencyMs, calm.BytesPerS = nil, 1, "aggregated", routing.DefaultPolicy, 0.01, 0
	calm.QueueLimit, calm.TenantMost = maxRequests, maxRequests
	calm.Workers = []Worker{{
		ID: "d-1", Host: "d-1", Blocks: 1 << 16, BatchTokens: 1 << 14, Sequences: 1 << 12, Chunk: s.BlockTokens * (maxTokens/s.BlockTokens + 1), Waiting: maxRequests,
		OutputShare: 1, LeaseMs: 10000, Credit: 1 << 20, BaseMs: 0.1,
	}}
	calm.Requests = slices.Clone(s.Requests)
	for i := range calm.Requests {
		calm.Requests[i].PatienceMs = 0
	}
	return &calm
}

// play runs the script and returns what each client got. A panic is a violation.
func (s *Script) play(change func(int, *answer)) (answers []answer, hedges simulate.Hedges, violation *simulate.Violation, err error) {
	cluster, err := simulate.New(s.config())
	if err != nil {
		return nil, hedges, nil, err
	}
	answers = make([]answer, len(s.Requests))
	defer func() {
		if p := recover(); p != nil {
			violation = &simulate.Violation{At: cluster.Elapsed(), Invariant: "nothing panics", Detail: fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
	}()
	var requests workload.List
	number := make(map[*workload.Request]int, len(s.Requests))
	for i, r := range s.Requests {
		q := r.request()
		number[q] = i
		requests = append(requests, q)
	}
	_, err = cluster.Run(simulate.Load{
		Source: &requests, RequestTimeout: requestTimeout, DrainTimeout: drainTimeout,
		Patience: func(q *workload.Request) time.Duration { return ms(s.Requests[number[q]].PatienceMs) },
		Ended: func(q *workload.Request, tokens []uint32, err error) {
			i := number[q]
			answers[i] = answer{tokens: slices.Clone(tokens), err: err, ended: true}
			change(i, &answers[i])
		},
	})
	if violation, is := errors.AsType[*simulate.Violation](err); is {
		return answers, cluster.Hedges(), violation, nil
	}
	return answers, cluster.Hedges(), nil, err
}

// fault describes what is wrong with an answer.
type fault struct{ invariant, detail string }

// judge compares an answer with the one of an undisturbed worker.
func (s *Script) judge(i int, got, want answer) *fault {
	r := s.Requests[i]
	if !got.ended {
		return &fault{"every request ends", "it did not"}
	}
	if !slices.Equal(got.tokens, want.tokens[:min(len(got.tokens), len(want.tokens))]) {
		return &fault{"tokens do not depend on what happens", fmt.Sprintf("%v, and %v undisturbed", got.tokens, want.tokens)}
	}
	if got.err == nil {
		if len(got.tokens) != r.Tokens {
			return &fault{"answers have the length asked for", fmt.Sprintf("%d tokens of %d", len(got.tokens), r.Tokens)}
		}
		return nil
	}
	switch code := status.Code(got.err); code {
	case codes.Canceled:
		if r.PatienceMs == 0 {
			return &fault{"requests fail for a reason", fmt.Sprintf("nobody cancelled it: %v", got.err)}
		}
	case codes.ResourceExhausted, codes.DeadlineExceeded: // too much load, or too few workers
		if s.light() && !s.beside(r) {
			return &fault{"requests fail for a reason", fmt.Sprintf("there is little to do: %v", got.err)}
		}
	case codes.Unavailable:
		if !s.beside(r) {
			return &fault{"requests fail for a reason", fmt.Sprintf("nothing went wrong: %v", got.err)}
		}
	default:
		return &fault{"requests fail for a reason", fmt.Sprintf("%v", got.err)}
	}
	return nil
}

// aftermath is how long a fault may have effects, until connections are made again and leases
// run out.
const aftermath = 30 * time.Second

// beside reports whether a fault may have affected a request.
func (s *Script) beside(r Request) bool {
	for _, f := range s.Faults {
		if ms(f.AtMs) <= ms(r.AtMs)+requestTimeout && ms(f.AtMs+f.ForMs)+aftermath >= ms(r.AtMs) {
			return true
		}
	}
	return false
}

// light reports whether the load is so small that no request may be refused: the slowest worker
// could serve all requests one after the other, with all KV sent, long before any client gives
// up.
func (s *Script) light() bool {
	if len(s.Requests) > min(s.QueueLimit, s.TenantMost) {
		return false
	}
	var all time.Duration
	for _, r := range s.Requests {
		var longest time.Duration
		for _, w := range s.Workers {
			prompt := r.Shared + r.Own
			steps := float64(prompt/w.Chunk + 1 + r.Tokens)
			took := steps*w.BaseMs*(1+5*w.Jitter) + s.LatencyMs*float64(10+r.Tokens)
			took += float64(prompt+r.Tokens) * (perTokenMs + perContextTokenMs*float64(prompt+r.Tokens))
			longest = max(longest, ms(took))
		}
		all += longest
		if s.BytesPerS > 0 {
			all += time.Duration(float64((r.Shared+r.Own)*kvTokenBytes+100*r.Tokens) / s.BytesPerS * float64(2*time.Second))
		}
	}
	return all < requestTimeout/4
}
