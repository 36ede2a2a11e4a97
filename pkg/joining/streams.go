package joining

import (
	"fmt"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// decode takes in a message of the decode stream; the one before came at before.
func (j *Join) decode(now, before time.Time, event *workerv1.DecodeEvent) {
	t := &j.attempt
	switch e := event.GetEvent().(type) {
	case *workerv1.DecodeEvent_Reserved:
		if t.reserved {
			j.broken(now, Decode, "reserved twice")
			return
		}
		t.reserved, t.reservedAt = true, now
		j.do(Tell{routing.Taken{ID: j.id(), Role: controlv1.Role_ROLE_DECODE}})
		j.decodeCached(e.Reserved.GetCachedTokens())
		if t.disaggregated {
			if e.Reserved.GetTicket() == nil {
				j.broken(now, Decode, "reserved without a ticket")
				return
			}
			j.openPrefill(now, e.Reserved.GetTicket())
		}
		j.accept()
	case *workerv1.DecodeEvent_Queued:
		j.queued(now, Decode, controlv1.Role_ROLE_DECODE, e.Queued)
	case *workerv1.DecodeEvent_Admitted:
		if t.admitted {
			j.broken(now, Decode, "admitted twice")
			return
		}
		t.admitted, t.admittedAt = true, now
		t.catchesUp, t.paused = t.paused, false
		j.decodeCached(e.Admitted.GetCachedTokens())
		j.approximate = j.approximate || e.Admitted.GetApproximate()
		queued := time.Duration(max(e.Admitted.GetQueueNs(), 0))
		if t.disaggregated {
			t.decodeQueue = queued
		} else {
			t.workerQueue = queued
			j.do(Tell{routing.Taken{ID: j.id(), Role: controlv1.Role_ROLE_DECODE}})
		}
		if t.first && t.firstEnd != nil && t.firstEnd.side == Prefill {
			// The KV is there: how prefill ended does not matter.
			t.firstEnd, t.waitUntil = nil, time.Time{}
		}
		j.accept()
	case *workerv1.DecodeEvent_Tokens:
		t.drafted(e.Tokens.GetDraftTokens(), e.Tokens.GetAcceptedDraftTokens())
		j.decodeTokens(now, before, e.Tokens)
	case *workerv1.DecodeEvent_PromptLogprobs:
		j.promptLogprobs(now, e.PromptLogprobs)
	case *workerv1.DecodeEvent_Paused:
		if !t.reserved && !t.admitted {
			j.broken(now, Decode, "paused before it had blocks")
			return
		}
		t.paused = true
	case *workerv1.DecodeEvent_Resumed:
		if !t.paused || !t.admitted {
			j.broken(now, Decode, "resumed without a pause")
			return
		}
		t.paused, t.catchesUp = false, true
	case *workerv1.DecodeEvent_Ended:
		if t.ended != nil {
			j.broken(now, Decode, "ended twice")
			return
		}
		t.ended = e.Ended
		t.drafted(e.Ended.GetDraftTokens(), e.Ended.GetAcceptedDraftTokens())
		j.completeIfOver(now)
	default:
		j.broken(now, Decode, "sent an empty event")
	}
}

// decodeCached takes in how many tokens of the prompt the decode worker holds. Where a prefill
// worker computes the prompt, only what that one has saves it work.
func (j *Join) decodeCached(tokens uint32) {
	if t := &j.attempt; !t.disaggregated {
		t.cached = max(t.cached, tokens)
	}
}

// queued takes in that a worker has the sequence.
func (j *Join) queued(now time.Time, side Side, role controlv1.Role, e *workerv1.Queued) {
	if j.attempt.queued[side] {
		j.broken(now, side, "queued twice")
		return
	}
	j.attempt.queued[side] = true
	j.do(Tell{routing.Queued{ID: j.id(), Role: role, Task: e.GetTask()}})
}

// maxTransport bounds what a worker may call a transport, bytes.
const maxTransport = 16

func (j *Join) openPrefill(now time.Time, ticket *kvtransferv1.Ticket) {
	s := Stream{j.number, Prefill}
	j.attempt.prefillAt = now
	j.open.add(s)
	j.do(OpenPrefill{Stream: s, Worker: j.attempt.Prefill, Generated: slices.Clone(j.tokens), Ticket: ticket, Source: j.attempt.Source})
}

func (j *Join) decodeTokens(now, before time.Time, e *workerv1.Tokens) {
	t := &j.attempt
	switch {
	case t.ended != nil:
		j.broken(now, Decode, "sent tokens after the end")
		return
	case int(e.GetOffset()) != t.decodeNext:
		j.broken(now, Decode, fmt.Sprintf("sent tokens at offset %d instead of %d", e.GetOffset(), t.decodeNext))
		return
	case t.decodeNext+len(e.GetTokenIds()) > j.p.MaxTokens:
		j.broken(now, Decode, fmt.Sprintf("sent more than the %d tokens asked for", j.p.MaxTokens))
		return
	}
	if problem := j.p.badLogprobs(len(e.GetTokenIds()), e.GetLogprobs()); problem != "" {
		j.broken(now, Decode, problem)
		return
	}
	if j.generates() {
		j.countGap(now, now.Sub(before))
	}
	t.paused, t.catchesUp = false, false
	t.decodeNext += len(e.GetTokenIds())
	for i, id := range e.GetTokenIds() {
		d := drawn{token: int32(id)}
		if j.p.Logprobs {
			d.logprobs = e.GetLogprobs()[i]
		}
		if t.disaggregated && !t.first {
			// The first token comes from prefill. At most MaxTokens wait for it.
			t.pending = append(t.pending, d)
			continue
		}
		if !j.deliver(now, Decode, d) {
			return
		}
	}
}

const (
	// tellGaps and tellEvery are after how many gaps between tokens, and after how
	// long, the policy is told of them.
	tellGaps  = 64
	tellEvery = time.Second
)

// countGap counts a gap between tokens of decode.
func (j *Join) countGap(now time.Time, gap time.Duration) {
	t := &j.attempt
	t.gaps.Add(gap)
	if t.gaps.Count() >= tellGaps || now.Sub(t.toldAt) >= tellEvery {
		j.do(Tell{routing.TokensReceived{ID: j.id(), Gaps: t.gaps}})
		t.gaps, t.toldAt = routing.Gaps{}, now
	}
}

// fetched takes in what came of the block store that the worker was told of. One
// that did not ask it has no verdict, though it may have waited for another's fetch.
func (j *Join) fetched(e *workerv1.PrefillStarted) {
	t := &j.attempt
	t.fetched, t.fetchNs = min(e.GetFetchedTokens(), e.GetCachedTokens()), max(e.GetFetchNs(), 0)
	if t.Source != nil && e.GetFetchVerdict() != workerv1.FetchVerdict_FETCH_VERDICT_UNSPECIFIED {
		j.do(Tell{routing.Fetched{
			Store: routing.Ref{ID: t.Source.GetWorkerId(), Epoch: t.Source.GetEpoch()}, Worker: t.Prefill, Verdict: e.GetFetchVerdict(),
			Tokens: int(min(t.fetched, uint32(j.p.PromptTokens))), Took: time.Duration(t.fetchNs),
		}})
	}
}

// prefill takes in a message of the prefill stream.
func (j *Join) prefill(now time.Time, event *workerv1.PrefillEvent) {
	t := &j.attempt
	switch e := event.GetEvent().(type) {
	case *workerv1.PrefillEvent_Queued:
		j.queued(now, Prefill, controlv1.Role_ROLE_PREFILL, e.Queued)
	case *workerv1.PrefillEvent_Started:
		if t.started {
			j.broken(now, Prefill, "started twice")
			return
		}
		t.started, t.startedAt = true, now
		j.do(Tell{routing.Taken{ID: j.id(), Role: controlv1.Role_ROLE_PREFILL}})
		t.cached = e.Started.GetCachedTokens()
		t.workerQueue = time.Duration(max(e.Started.GetQueueNs(), 0))
		j.fetched(e.Started)
	case *workerv1.PrefillEvent_FirstToken:
		if t.first {
			j.broken(now, Prefill, "sent two first tokens")
			return
		}
		first := drawn{int32(e.FirstToken.GetTokenId()), e.FirstToken.GetLogprobs()}
		if problem := j.p.badLogprobs(1, first.sent()); problem != "" {
			j.broken(now, Prefill, problem)
			return
		}
		t.firstLast = e.FirstToken.GetLast()
		t.prefillComputeNs = e.FirstToken.GetComputeNs()
		if !j.deliver(now, Prefill, first) {
			return
		}
		if _, over := j.naturalEnd(); over || t.firstLast {
			j.complete(now, Prefill)
			return
		}
		for _, d := range t.pending {
			if !j.deliver(now, Decode, d) {
				return
			}
		}
		t.pending = nil
		if t.firstEnd != nil && rpc.Reason(t.firstEnd.err) != api.ReasonTransferFailed {
			j.fail(now, Decode, t.firstEnd.err) // and not because the first token was the last
			return
		}
		j.completeIfOver(now)
	case *workerv1.PrefillEvent_Sent:
		t.sent = true
		t.transferNs, t.transferBytes = e.Sent.GetTransferNs(), e.Sent.GetBytes()
		t.transferTailNs = e.Sent.GetTailNs()
		if transport := e.Sent.GetTransport(); len(transport) <= maxTransport {
			t.transport = transport
		}
		j.do(Tell{routing.Sent{ID: j.id(), Bytes: e.Sent.GetPathBytes(), Busy: time.Duration(max(e.Sent.GetPathBusyNs(), 0))}})
		j.completeIfOver(now)
	default:
		j.broken(now, Prefill, "sent an empty event")
	}
}
