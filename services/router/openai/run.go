package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// receive gets the events of the answers, one at a time and as they come, but none before what
// several.follow waits for.
type receive func(index int, event *inferencev1.GenerateEvent) error

// run generates the answers of a request and returns when all have ended. The first that fails ends
// the others. A single answer runs on the caller's goroutine, with now as Caller.Now. The error has
// the request's names of fields.
func (h *Handler) run(a *assembly, to receive, now func(*inferencev1.GenerateEvent) bool) error {
	return rename(a.serve(to, func(to receive) error { return h.generated(a, to, now) }), a.parsed.name)
}

// serve has the backend serve a request whose events go to a receiver, and returns the error of that
// if it has failed: the backend takes it for a client that is gone.
func (a *assembly) serve(to receive, call func(receive) error) error {
	var failed error
	err := call(func(index int, event *inferencev1.GenerateEvent) error {
		if event.GetAccepted() != nil {
			a.admitted()
		}
		failed = to(index, event)
		return failed
	})
	if err != nil && failed == nil {
		return err
	}
	a.exchange.counted = a.exchange.secret != "" // what the backend has admitted
	return failed
}

// generated is run without what is common to all that the backend serves.
func (h *Handler) generated(a *assembly, to receive, now func(*inferencev1.GenerateEvent) bool) error {
	e, c := a.exchange, a.parsed
	if most := h.config.MaxAnswers(); len(c.choices) > most {
		return tooMany(c, most)
	}
	c.secret = cmp.Or(c.secret, rpc.NewID())
	if len(c.choices) > 1 {
		return h.several(a, to)
	}
	q := c.choices[0]
	if c.echoesTokens || q.PromptLogprobs != nil || int64(q.GetMaxTokens())*c.scoredToken() > h.mostOfOne() {
		if _, _, err := h.prepare(a); err != nil {
			return err
		}
	}
	return h.answer(e.request.Context(), e, c, &serving.Caller{Now: now}, q, func(event *inferencev1.GenerateEvent) error { return to(0, event) })
}

// answer generates one answer, for a caller of which it fills in what the request says.
func (h *Handler) answer(ctx context.Context, e *exchange, c *parsedRequest, caller *serving.Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	if c.empty && q.PromptLogprobs == nil {
		if err := h.nothing(ctx, c, q, send); err != nil {
			return err
		}
		e.limits.Count(ctx)
		return nil
	}
	c.describe(caller)
	if q.GetConversation() != nil {
		caller.Rendered = c.planned[q].Prompt
	}
	return h.backend.Generate(ctx, caller, q, send)
}

// describe says of a caller what the request says: all of its answers have one secret.
func (c *parsedRequest) describe(caller *serving.Caller) {
	caller.Route, caller.Chat, caller.Secret = c.route, c.chat, c.secret
	caller.HTTPStatus = func(err error) int { return FailureOf(err).Status }
}

// prepareSeveral is prepare for several answers, unless they need more than their caller may use.
func (h *Handler) prepareSeveral(a *assembly) (id string, err error) {
	e, c := a.exchange, a.parsed
	ctx, need := e.request.Context(), quota.Need{Requests: int64(len(c.choices))}
	computes := !c.empty || c.choices[0].PromptLogprobs != nil
	switch {
	case c.empty && computes: // one answer to each prompt computes its log probabilities
		need.AtOnce = need.Requests / int64(c.n)
	case computes:
		need.AtOnce = need.Requests
	}
	if err := e.limits.Check(ctx, need, manyBy(c)); err != nil {
		return "", err
	}
	if id, need.Tokens, err = h.prepare(a); err != nil || !computes {
		return id, err
	}
	return id, e.limits.Check(ctx, need, manyBy(c))
}

// several generates several answers. Answers to one prompt share it.
func (h *Handler) several(a *assembly, to receive) error {
	e, c := a.exchange, a.parsed
	id, err := h.prepareSeveral(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(e.request.Context())
	defer cancel(nil)
	r := &several{
		handler: h, exchange: e, parsed: c,
		known: make(chan string, len(c.choices)), queued: make(chan int, len(c.choices)), events: make(chan indexedEvent), failures: make(chan error, len(c.choices)),
	}
	var wait sync.WaitGroup
	var sharing serving.Sharing
	for i, q := range c.choices {
		if c.n > 1 {
			if sharing.First = i%c.n == 0; sharing.First {
				sharing.Prompt = serving.NewPrompt()
			}
		}
		caller := &serving.Caller{Sharing: sharing}
		wait.Go(func() { r.one(rpc.WithRequestID(ctx, suffixed(id, i)), caller, i, q) })
	}
	err = r.follow(len(c.choices), to, cancel)
	wait.Wait()
	return err
}

// tooMany refuses a request with more answers than can ever be admitted.
func tooMany(c *parsedRequest, most int) error {
	return invalid(manyBy(c), fmt.Sprintf("%d answers exceed this server's limit of %d; ask for fewer", len(c.choices), most))
}

// manyBy is the field that asks for so many answers.
func manyBy(c *parsedRequest) string {
	if c.n == 1 {
		return "prompt"
	}
	return "n"
}

// prepare tokenizes each text and conversation once for all its answers, one after the other, and
// returns the id of the answers and how many tokens all of them may take, unless they take too much memory.
func (h *Handler) prepare(a *assembly) (id string, tokens int64, err error) {
	c, number, bytes := a.parsed, 0, footprint{}
	c.planned = make(map[*inferencev1.GenerateRequest]Plan)
	for answers := range slices.Chunk(c.choices, c.n) {
		plan, err := h.backend.Plan(a.exchange.request.Context(), answers[0])
		if err != nil {
			return "", 0, err
		}
		computed := c.n
		if c.empty {
			computed = 1
		}
		tokens += int64(len(plan.Prompt) + computed*plan.MaxTokens)
		// A conversation is more than its prompt: it also decides what ends a turn and which
		// tools can be called.
		conversation := answers[0].GetConversation() != nil
		prompt := &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: plan.Prompt}}
		for _, q := range answers {
			if conversation || c.empty {
				c.planned[q] = plan
			}
			if !conversation {
				q.Input = prompt
			}
		}
		echo := 0
		switch {
		case c.echoesTokens:
			echo = plan.TextBytes()
		case c.echoes != nil:
			echo = len(c.echoes[number])
		}
		if bytes.add(c, answers[0], plan, echo); !h.fits(bytes) {
			return "", 0, c.tooLarge(bytes.prompts > bytes.answers)
		}
		if c.echoesTokens {
			c.echoes[number] = plan.Text()
			if !a.memory.take(echoCopies * int64(len(c.echoes[number]))) {
				return "", 0, full()
			}
		}
		number++
		id = plan.RequestID
	}
	return id, tokens, nil
}

// suffixed is the id of one of several answers. The slash keeps it apart from ids that end in a
// number.
func suffixed(id string, index int) string {
	if index == 0 {
		return id
	}
	return rpc.Suffixed(id, "/"+strconv.Itoa(index))
}

// several are the answers of a request, each made by its own goroutine.
type several struct {
	handler  *Handler
	exchange *exchange
	parsed   *parsedRequest
	known    chan string // the id of the first answer, and "" from each other one, once it is queued or waits for its prompt
	queued   chan int    // the number of its prompt from each answer, once it is queued
	events   chan indexedEvent
	failures chan error // one from each answer at its end; nil if it went well
}

// indexedEvent is an event of one of the answers.
type indexedEvent struct {
	index int
	event *inferencev1.GenerateEvent
}

// one makes an answer.
func (r *several) one(ctx context.Context, caller *serving.Caller, index int, q *inferencev1.GenerateRequest) {
	var known, queued sync.Once
	caller.Queued = func(id string, waits bool) {
		if index > 0 {
			id = ""
		}
		known.Do(func() { r.known <- id })
		if !waits {
			queued.Do(func() { r.queued <- index / r.parsed.n })
		}
	}
	err := func() (err error) {
		// The server cannot recover a panic of this goroutine.
		defer func() {
			if p := recover(); p != nil {
				err = r.handler.panicked(ctx, p)
			}
		}()
		return r.handler.answer(ctx, r.exchange, r.parsed, caller, q, func(event *inferencev1.GenerateEvent) error {
			if event.GetAccepted() != nil {
				caller.Queued(event.GetAccepted().GetRequestId(), false) // an answer that computes nothing was not before
			}
			select {
			case r.events <- indexedEvent{index, event}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	r.failures <- err
}

// follow passes events on until all answers have ended. It waits until all answers to one prompt are
// queued, and those to others, too, but for those that wait for their prompt: what is refused until then
// is refused with a status. It does not wait until all run or have their prompt, which may be only when
// others have ended.
func (r *several) follow(count int, to receive, cancel context.CancelCauseFunc) error {
	var failed error
	fail := func(err error) {
		if failed == nil && err != nil {
			failed = err
			cancel(clienterr.OtherFailed(err))
		}
	}
	ended, known, queued, complete := 0, 0, make([]int, count/r.parsed.n), false
	for failed == nil && (known < count || !complete) {
		select {
		case err := <-r.failures:
			ended++
			fail(err)
		case id := <-r.known:
			known++
			r.exchange.id = cmp.Or(id, r.exchange.id)
		case prompt := <-r.queued:
			queued[prompt]++
			complete = complete || queued[prompt] == r.parsed.n
		}
	}
	for ended < count {
		select {
		case err := <-r.failures:
			ended++
			fail(err)
		case e := <-r.events:
			if failed == nil {
				fail(to(e.index, e.event))
			}
		}
	}
	return failed
}

// nothing answers a request for no tokens. It checks the request like any other, unless prepare has
// done so: the tenant's limits may be used up since.
func (h *Handler) nothing(ctx context.Context, c *parsedRequest, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) (err error) {
	plan, is := c.planned[q]
	if !is {
		if plan, err = h.backend.Plan(ctx, q); err != nil {
			return err
		}
	}
	accepted := &inferencev1.Accepted{Model: plan.Model, SystemFingerprint: plan.Fingerprint, PromptTokens: uint32(len(plan.Prompt))}
	return errors.Join(
		send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: accepted}}),
		send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
			Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH,
			Usage:  &inferencev1.Usage{PromptTokens: accepted.GetPromptTokens()},
		}}}),
	)
}
