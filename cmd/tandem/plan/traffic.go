package plan

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/queueing"
)

// requestLengths are those of one request, in tokens.
type requestLengths struct{ prompt, output int }

// traffic is what the formulas know of the load.
type traffic struct {
	// rate is requests a second; the turns of a conversation count each.
	rate float64
	// arrivalSCV is the variation of the times between requests, 1 if they come at random.
	arrivalSCV float64
	requests   []requestLengths
	// prompt and output are mean lengths.
	prompt, output float64
	// changed says what of the load does not fit, such as prompts that are cut.
	changed []string
}

const (
	// mostSampled bounds the requests that the formulas look at.
	mostSampled = 20_000
	// drawnSampled is how many they look at if lengths are drawn.
	drawnSampled = 4000
	// mostTurns bounds the turns of a conversation.
	mostTurns = 64
)

// newTraffic samples the load.
func newTraffic(q *Question) (t traffic, err error) {
	spec := q.Cluster.Spec()
	load := &q.Load.Workload
	most, rate := drawnSampled, q.Load.Rate
	params := workload.Params{Rate: rate, VocabularySize: spec.VocabSize, ContextTokens: spec.ContextTokens}
	if load.Arrival == workload.Ramp {
		params.Duration = q.Load.Duration
	}
	if load.OwnTimes() {
		most = mostSampled
	}
	source, err := load.New(params)
	if err != nil {
		return t, err
	}
	if closer, is := source.(io.Closer); is {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	var gaps []float64
	var first, last time.Duration
	begun := 0
	for begun < most {
		request, err := source.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t, err
		}
		if load.OwnTimes() && q.Load.DurationSet && request.Due > q.Load.Sends() {
			break
		}
		if begun == 0 {
			first = request.Due
		} else {
			gaps = append(gaps, (request.Due - last).Seconds())
		}
		begun++
		last = request.Due
		for turn := 0; request != nil && turn < mostTurns; turn++ {
			t.requests = append(t.requests, requestLengths{request.Prompt.Length(), request.MaxTokens})
			if request.Then == nil {
				break
			}
			answer := workload.Answer{TokenIDs: make([]uint32, request.MaxTokens)}
			request, _ = request.Then(answer)
		}
	}
	if begun == 0 {
		return t, errors.New("the trace holds no requests")
	}
	if warner, is := source.(workload.Warner); is {
		for _, w := range warner.Warnings() {
			if w.Of > 0 && w.Count == w.Of {
				return t, fmt.Errorf("all %s: plan for shorter ones, or for a model with a longer context", w.Text)
			}
			t.changed = append(t.changed, w.String())
		}
	}
	t.rate, t.arrivalSCV = rate, 1
	if load.OwnTimes() {
		if last <= first {
			return t, errors.New("the requests of the trace all come at once: pass --rate with --prompt-tokens empirical to give them a rate")
		}
		t.rate = float64(begun-1) / (last - first).Seconds()
		t.arrivalSCV = queueing.ServiceOf(gaps).SCV
	} else {
		switch load.Arrival {
		case workload.Constant:
			t.arrivalSCV = 0
		case workload.Gamma:
			t.arrivalSCV = 1 / load.Burstiness
		}
	}
	t.rate *= float64(len(t.requests)) / float64(begun)
	for _, r := range t.requests {
		t.prompt += float64(r.prompt) / float64(len(t.requests))
		t.output += float64(r.output) / float64(len(t.requests))
	}
	if math.IsNaN(t.rate) || t.rate <= 0 {
		return t, errors.New("no requests come: pass a --rate above 0")
	}
	return t, nil
}
