package worker_test

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// stream is what a client has read.
type stream struct {
	last   message
	offset int // of the next token
	ended  bool
}

// message is the kind of the last one of a stream.
type message string

const (
	nothing    message = ""
	reserved   message = "Reserved"
	admitted   message = "Admitted"
	token      message = "Tokens"
	paused     message = "Paused"
	resumed    message = "Resumed"
	endedWell  message = "Ended"
	started    message = "Started"
	firstToken message = "FirstToken"
	sent       message = "Sent"
)

// follows says which messages may come before each.
var follows = map[message][]message{
	reserved:   {nothing},
	admitted:   {nothing, reserved, paused},
	paused:     {reserved, admitted, token, paused, resumed},
	resumed:    {paused},
	endedWell:  {reserved, token},
	started:    {nothing},
	firstToken: {started},
	sent:       {firstToken},
}

// ask takes an action that a service carries out.
func (w *world) ask(l *sequence, action worker.OfSequence) {
	switch a := action.(type) {
	case worker.SendDecode:
		w.decodeMessage(l, a.Event)
	case worker.SendPrefill:
		w.prefillMessage(l, a.Event)
	case worker.ReserveKV:
		if l.generate == nil || l.told != none || l.request.Kind != scheduler.Receive {
			w.fatalf("%d: ReserveKV a second time, or for one that receives nothing", l.id)
		}
		l.queue = append(l.queue, a)
	case worker.CancelKV:
		if l.generate == nil || l.told != opened || l.aborted {
			w.fatalf("%d: cancels a reservation that it does not have", l.id)
		}
		l.aborted = true
		l.queue = append(l.queue, a)
	case worker.OpenTransfer:
		if l.prefill == nil || l.told != none || w.draining {
			w.fatalf("%d: OpenTransfer a second time, or while the worker drains", l.id)
		}
		l.queue = append(l.queue, a)
	case worker.Fetch:
		if l.prefill == nil || !l.prefill.Fetch || l.told != opened {
			w.fatalf("%d: Fetch without a transfer, or not wanted", l.id)
		}
		l.queue = append(l.queue, a)
	case worker.Offer:
		w.offered(l, a.First, a.Blocks)
	case worker.Commit:
		w.commits(l, a)
		l.queue = append(l.queue, a)
	case worker.Abort:
		finished := a.Reason == kvtransferv1.AbortReason_ABORT_REASON_FINISHED
		if l.told != opened || l.aborted || finished && l.last != firstToken {
			w.fatalf("%d: aborts a transfer that it does not have, or too early, or twice", l.id)
		}
		l.aborted = true
		l.queue = append(l.queue, a)
	case worker.End:
		w.ends(l, a.Err)
	}
}

func (w *world) decodeMessage(l *sequence, e *workerv1.DecodeEvent) {
	switch {
	case e.GetReserved() != nil:
		w.message(l, reserved)
	case e.GetAdmitted() != nil:
		w.message(l, admitted)
		if l.request.Kind == scheduler.Receive && l.told != finished {
			w.fatalf("%d: admitted before its KV is there", l.id)
		}
	case e.GetEnded() != nil:
		w.message(l, endedWell)
	case e.GetPaused() != nil:
		w.message(l, paused)
		if l.pausedAt == len(w.history) {
			w.fatalf("%d: paused twice at once", l.id)
		}
		l.pausedAt = len(w.history)
	case e.GetResumed() != nil:
		w.message(l, resumed)
	}
	if l.generate == nil || !l.generate.Pauses && (l.last == paused || l.last == resumed) {
		w.fatalf("%d: a message that nobody asked for: %v", l.id, e)
	}
}

func (w *world) prefillMessage(l *sequence, e *workerv1.PrefillEvent) {
	switch {
	case l.prefill == nil:
		w.fatalf("%d: a message that nobody asked for: %v", l.id, e)
	case e.GetStarted() != nil:
		w.message(l, started)
	case e.GetFirstToken() != nil:
		w.message(l, firstToken)
	case e.GetSent() != nil:
		w.message(l, sent)
	}
}

func (w *world) message(l *sequence, m message) {
	for _, before := range follows[m] {
		if l.last == before {
			l.last = m
			return
		}
	}
	w.fatalf("%d: %s after %q", l.id, m, l.last)
}

// offered: blocks of a prompt are sent from now on.
func (w *world) offered(l *sequence, first int, blocks []kvcache.BlockID) {
	if l.prefill == nil || l.told != opened || l.committed || l.aborted {
		w.fatalf("%d: blocks for a transfer that is not open", l.id)
	}
	if l.covered == nil {
		l.covered = make([]int, w.blocks(l))
	}
	for i := range blocks {
		l.covered[first+i]++
	}
	l.offers = append(l.offers, worker.Offer{First: first, Blocks: blocks})
}

// checkOffers: what is sent as some blocks of a sequence is those.
func (w *world) checkOffers(l *sequence) {
	for _, o := range l.offers {
		if !slices.Equal(l.table[o.First:o.First+len(o.Blocks)], o.Blocks) {
			w.fatalf("%d: sends blocks %v as those from %d on of %v", l.id, o.Blocks, o.First, l.table)
		}
	}
	l.offers = nil
}

// blocks is how many the prompt has.
func (w *world) blocks(l *sequence) int {
	return (len(l.request.Tokens) + w.config.BlockTokens - 1) / w.config.BlockTokens
}

func (w *world) commits(l *sequence, a worker.Commit) {
	if l.prefill == nil || l.told != opened || l.committed || l.aborted || l.last != firstToken {
		w.fatalf("%d: commits a transfer that it does not have, or before FirstToken, or twice", l.id)
	}
	for i := range w.blocks(l) {
		want := 1
		if i < l.prefill.Held {
			want = 0
		}
		if i >= len(l.covered) && want == 0 {
			continue // nothing was offered
		}
		if i >= len(l.covered) || l.covered[i] != want {
			w.fatalf("%d: commits with block %d not sent exactly once: %v", l.id, i, l.covered)
		}
	}
	l.committed = true
}

func (w *world) ends(l *sequence, err error) {
	switch well := l.last == endedWell || l.last == sent; {
	case l.bare():
		w.fatalf("%d: End is not for bare sequences", l.id)
	case well != (err == nil):
		w.fatalf("%d: ends with %v after %q", l.id, err, l.last)
	case err != nil && status.Code(err) == codes.Unknown:
		w.fatalf("%d: ends with %v, which is no gRPC status", l.id, err)
	case l.told == none && len(l.queue) > 0:
		w.fatalf("%d: ends before %T is answered", l.id, l.queue[0])
	case l.generate != nil && l.told == opened && !l.aborted:
		w.fatalf("%d: ends without an end of its reservation", l.id)
	case l.prefill != nil && (l.told == opened || l.fetching):
		w.fatalf("%d: ends before its transfer", l.id)
	}
	l.ended = true
}

// errBroken is why transfers break.
var errBroken = errors.New("the network is down")

// move is what may happen in a service next. A fault is one that ends no sequence well.
type move struct {
	fault bool
	do    func()
}

// moves is what may happen in all services.
func (w *world) moves(faults bool) (moves []func()) {
	for _, l := range w.order {
		all := append(w.answers(l), w.transferMoves(l)...)
		for _, m := range all {
			if m.fault == faults {
				moves = append(moves, m.do)
			}
		}
	}
	return moves
}

// answers is what the service of a sequence may tell the worker, or carry out for it.
func (w *world) answers(l *sequence) (moves []move) {
	if len(l.calls) > 0 {
		moves = append(moves, move{do: func() { w.call(l) }})
	}
	if l.fetching {
		return append(moves, move{do: func() {
			l.fetching = false
			w.handle(worker.Fetched{ID: l.id, Until: w.config.BlockTokens})
		}})
	}
	if len(l.queue) == 0 {
		return moves
	}
	refuse := func(event worker.Event) move {
		return move{true, func() {
			l.queue, l.told = l.queue[1:], finished
			w.handle(event)
		}}
	}
	switch l.queue[0].(type) {
	case worker.ReserveKV:
		moves = append(moves, refuse(worker.NotReserved{ID: l.id, Err: status.Error(codes.ResourceExhausted, "full")}))
	case worker.OpenTransfer:
		moves = append(moves, refuse(worker.NotOpened{ID: l.id, Err: status.Error(codes.Unavailable, "refused")}))
	}
	return append(moves, move{do: func() { w.carry(l) }})
}

// transferMoves is what may become of the transfer of a sequence.
func (w *world) transferMoves(l *sequence) []move {
	switch {
	case l.bare():
		return w.bareMoves(l)
	case l.generate != nil:
		return w.receiverMoves(l)
	}
	return w.senderMoves(l)
}

// receiverMoves is what may happen to the reservation of a Generate.
func (w *world) receiverMoves(l *sequence) (moves []move) {
	end := func(how transfer, event worker.Event) func() {
		return func() {
			l.transfer = how
			l.calls = append(l.calls, event)
		}
	}
	switch l.transfer {
	case opened:
		moves = append(moves, move{true, end(broken, worker.Broke{ID: l.id, Err: errBroken})})
		if l.last == nothing { // nobody has the ticket
			return moves
		}
		for _, sampled := range [][]int32{{1}, {1, 2}, {}, {vocabulary}, {-1}} {
			invalid := len(sampled) == 0 || sampled[0] < 0 || sampled[0] >= vocabulary
			moves = append(moves, move{invalid, end(finished, worker.Arrived{ID: l.id, From: "prefill", Sampled: sampled})})
		}
		moves = append(moves,
			move{false, end(finished, worker.Arrived{ID: l.id, From: "prefill", Sampled: []int32{3}, Approximate: true})},
			move{true, end(broken, worker.Broke{ID: l.id, Err: errBroken, Finished: true})})
	case broken:
		moves = append(moves, move{false, end(finished, worker.Drained{ID: l.id})})
	}
	return moves
}

// senderMoves is what may happen to the transfer of a Prefill. The other side may end it at
// any time, and decides whether a commit or an abort came first.
func (w *world) senderMoves(l *sequence) (moves []move) {
	if l.transfer != opened {
		return nil
	}
	for _, err := range []error{nil, errBroken} {
		asked := len(l.queue) == 0 && (l.committed && err == nil || l.aborted)
		moves = append(moves, move{!asked, func() {
			l.transfer = finished
			l.calls = append(l.calls, worker.Sent{ID: l.id, Err: err, Stats: &workerv1.KvSent{Bytes: 1}})
		}})
	}
	return moves
}

// bareMoves is what may happen to the transfer of a bare sequence.
func (w *world) bareMoves(l *sequence) []move {
	arrives := func(sampled ...int32) move {
		return move{do: func() {
			l.transfer = finished
			l.offset += len(sampled)
			w.handle(scheduler.KVArrived{ID: l.id, Sampled: sampled, From: "prefill"})
		}}
	}
	done := func(fault bool) move {
		return move{fault, func() {
			l.transfer, l.released = finished, true
			w.handle(scheduler.TransferDone{ID: l.id})
		}}
	}
	switch {
	case l.gone || l.released || l.refused:
	case l.request.Kind == scheduler.PrefillOnly:
		if l.heard() {
			return []move{done(false)}
		}
	case l.transfer == opened:
		if l.request.Kind == scheduler.Restore {
			return []move{arrives(), done(true)}
		}
		return []move{arrives(1), arrives(1, 2), done(true)}
	case l.transfer == finished && l.request.Kind == scheduler.Restore:
		return []move{done(false)}
	}
	return nil
}

// carry carries out what the worker asked for first.
func (w *world) carry(l *sequence) {
	action := l.queue[0]
	l.queue = l.queue[1:]
	switch action.(type) {
	case worker.ReserveKV:
		// From here on the reservation may end, whenever the worker hears of it.
		l.transfer = opened
		l.queue = append([]worker.Action{worker.Reserved{ID: l.id, Ticket: &kvtransferv1.Ticket{TransferId: uint64(l.id)}}}, l.queue...)
	case worker.Reserved:
		if l.told == none {
			l.told = opened
		}
		w.handle(action)
	case worker.CancelKV:
		if l.transfer == opened {
			l.transfer = broken
		}
	case worker.OpenTransfer:
		l.transfer, l.told = opened, opened
		w.handle(worker.Opened{ID: l.id})
	case worker.Fetch:
		l.fetching = true
	}
}

// call tells the worker what became of a transfer.
func (w *world) call(l *sequence) {
	event := l.calls[0]
	l.calls = l.calls[1:]
	switch e := event.(type) {
	case worker.Arrived:
		l.told = finished
		valid := len(e.Sampled) > 0 && e.Sampled[0] >= 0 && e.Sampled[0] < vocabulary
		if valid && !l.ended {
			l.offset += len(e.Sampled)
		}
	case worker.Broke:
		l.told = broken
	case worker.Drained, worker.Sent:
		l.told = finished
	}
	w.handle(event)
}
