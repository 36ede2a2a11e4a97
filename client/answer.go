package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// answer is what came of a request, from all routers together.
type answer struct {
	request *inferencev1.GenerateRequest
	hand    func(*inferencev1.GenerateEvent) bool // hands an event to the caller, who may leave
	left    bool                                  // the caller has

	accepted  *inferencev1.Accepted
	from      inferencev1.InferenceClient // the router that accepted it
	forgotten bool                        // no router can resume it: it is sent anew
	scored    int                         // tokens of the prompt whose log probabilities the caller has
	tokens    []uint32
	text      int // bytes of text that the caller has
	replayed  int // of them, what came from the router that is followed now
}

// resumes reports whether a router may have the answer to go on with.
func (a *answer) resumes() bool {
	return a.accepted != nil && a.request.GetResumableFor().AsDuration() > 0 && !a.forgotten
}

// follow reads the answer until it is whole. One that can be resumed is: at the router that it came from,
// or else at this one. If neither has it, or the mesh has given it up, it is made anew at this one. If it
// was cut off since answers filled their memory, that is the next try's, after the time that the router
// asks for. One that is too large by itself would be so again.
func (a *answer) follow(ctx context.Context, router inferencev1.InferenceClient) (began bool, _ error) {
	if !a.resumes() {
		return a.read(ctx, router)
	}
	began, err := a.read(ctx, a.from)
	if code := status.Code(err); router != a.from && !began && (code == codes.Unavailable || code == codes.NotFound) {
		began, err = a.read(ctx, router)
	}
	_, asks := RetryAfter(err)
	switch reason := Reason(err); {
	case reason == reasonUnread && asks:
		a.forgotten = true
		return false, err
	case reason == reasonClientGone || reason == reasonRequestNotFound && !began:
		a.forgotten = true
		return a.read(ctx, router)
	}
	return began, err
}

// read reads the answer of one router.
func (a *answer) read(ctx context.Context, router inferencev1.InferenceClient) (began bool, _ error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.open(ctx, router)
	if err != nil {
		return false, err
	}
	for finished := false; ; {
		event, err := stream.Recv()
		switch {
		case err != nil && finished: // however the stream ends, the answer is whole
			return true, nil
		case errors.Is(err, io.EOF):
			return began, errorf(codes.Internal, "INCOMPLETE_STREAM", "the router ended the stream without a result: see its log")
		case err != nil:
			if began && status.Code(err) == codes.Unavailable && Reason(err) != "" {
				// The request has failed, or a router that relays it has lost it: resuming it
				// would give this error again. A stream that just breaks has no reason.
				a.forgotten = true
			}
			return began, err
		}
		began, finished = true, event.GetFinished() != nil
		if event.GetAccepted() != nil {
			a.from = router
		}
		if event, err = a.take(event); err != nil {
			return true, err
		}
		if event != nil && !a.hand(event) {
			return true, nil
		}
	}
}

// open begins to read: from where the caller is, or from the start, which costs the same
// computation again.
func (a *answer) open(ctx context.Context, router inferencev1.InferenceClient) (grpc.ServerStreamingClient[inferencev1.GenerateEvent], error) {
	if !a.resumes() {
		a.replayed = 0
		return router.Generate(ctx, a.request)
	}
	a.replayed = a.text
	return router.Resume(ctx, &inferencev1.ResumeRequest{RequestId: a.accepted.GetRequestId(), Secret: a.accepted.GetSecret(), Offset: uint64(len(a.tokens))})
}

// take takes in an event, and returns what of it the caller has not had; nil if that is nothing.
func (a *answer) take(event *inferencev1.GenerateEvent) (*inferencev1.GenerateEvent, error) {
	switch e := event.GetEvent().(type) {
	case *inferencev1.GenerateEvent_Accepted:
		if a.accepted != nil && a.accepted.GetSystemFingerprint() != e.Accepted.GetSystemFingerprint() {
			return nil, errorf(codes.DataLoss, "OTHER_VERSION", "the router was lost, and another one serves other weights: send the request again")
		}
		a.accepted = e.Accepted
		a.pin(e.Accepted.GetSeed())
		return event, nil
	case *inferencev1.GenerateEvent_PromptLogprobs:
		return a.takePrompt(event, e.PromptLogprobs)
	case *inferencev1.GenerateEvent_Tokens:
		return a.takeTokens(event, e.Tokens)
	case *inferencev1.GenerateEvent_Finished:
		if had := uint64(len(a.tokens)); event.GetOffset() != had {
			return nil, errorf(codes.DataLoss, "OTHER_TOKENS", "the answer ended after %d tokens, and %d came: send the request again", event.GetOffset(), had)
		}
		if text := a.fresh(e.Finished.GetText()); text != e.Finished.GetText() {
			event = proto.CloneOf(event)
			event.GetFinished().Text = text
		}
		return event, nil
	}
	return event, nil // of a later version of the protocol
}

// takePrompt is take. Another router tells of the whole prompt again.
func (a *answer) takePrompt(event *inferencev1.GenerateEvent, scores *inferencev1.PromptLogprobs) (*inferencev1.GenerateEvent, error) {
	at, n := int(scores.GetOffset()), len(scores.GetTokenIds())
	had := a.scored - at
	switch {
	case had < 0:
		return nil, errorf(codes.DataLoss, "OTHER_TOKENS", "the log probabilities of the prompt go on at %d, not at %d: send the request again", at, a.scored)
	case had >= n:
		return nil, nil
	}
	a.scored = at + n
	if had == 0 {
		return event, nil
	}
	rest := &inferencev1.PromptLogprobs{Offset: scores.GetOffset() + uint32(had), TokenIds: scores.GetTokenIds()[had:]}
	if len(scores.GetLogprobs()) > had {
		rest.Logprobs = scores.GetLogprobs()[had:]
	}
	return &inferencev1.GenerateEvent{Offset: event.GetOffset(), Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: rest}}, nil
}

// takeTokens is take. Where one router sends tokens together, another may send them apart.
func (a *answer) takeTokens(event *inferencev1.GenerateEvent, delta *inferencev1.TokenDelta) (*inferencev1.GenerateEvent, error) {
	had := 0
	for i, id := range delta.GetTokenIds() {
		switch at := event.GetOffset() + uint64(i); {
		case at < uint64(len(a.tokens)) && a.tokens[at] == id:
			had++
		case at == uint64(len(a.tokens)):
			a.tokens = append(a.tokens, id)
			a.forgotten = false // what this router has can be resumed from here, and not before
		default:
			return nil, errorf(codes.DataLoss, "OTHER_TOKENS", "token %d does not go on with what came before: send the request again", at)
		}
	}
	text := a.fresh(delta.GetText())
	switch {
	case had == 0 && text == delta.GetText():
		return event, nil
	case had == len(delta.GetTokenIds()) && text == "":
		return nil, nil
	}
	rest := &inferencev1.TokenDelta{TokenIds: delta.GetTokenIds()[had:], Text: text}
	if len(delta.GetLogprobs()) > had {
		rest.Logprobs = delta.GetLogprobs()[had:]
	}
	return &inferencev1.GenerateEvent{Offset: event.GetOffset() + uint64(had), Event: &inferencev1.GenerateEvent_Tokens{Tokens: rest}}, nil
}

// fresh is the end of a text that the caller has not had: equal tokens have equal texts.
func (a *answer) fresh(text string) string {
	a.replayed += len(text)
	fresh := text[len(text)-min(len(text), max(a.replayed-a.text, 0)):]
	a.text += len(fresh)
	return fresh
}

// pin has the request sent with the seed that it was given, wherever it goes.
func (a *answer) pin(seed uint64) {
	if s := a.request.GetSampling(); s != nil && s.Seed != nil {
		return
	}
	a.request = proto.CloneOf(a.request)
	if a.request.Sampling == nil {
		a.request.Sampling = new(inferencev1.Sampling)
	}
	a.request.Sampling.Seed = &seed
}
