package simulate

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// call is the worker's side of a stream that a router has opened.
type call struct {
	stream   *stream
	process  *process
	id       scheduler.SequenceID
	prefill  *workerv1.PrefillRequest // nil for a decode call
	held     int                      // leading blocks that the receiver has, by the ticket
	transfer uint64                   // id, from the reservation or the ticket
	session  *session                 // of the transfer; nil without one
	sending  bool                     // the transfer is open
	opened   time.Time
	sent     kvtransfer.TransferStats
}

// serve begins a call of a router.
func (p *process) serve(s *stream, epoch uint64, task *workerv1.Task, begin func(scheduler.Request) worker.Event, prefill *workerv1.PrefillRequest) {
	if err := membership.CheckEpoch(epoch, p.ref.Epoch); err != nil {
		s.end(err)
		return
	}
	request, err := worker.ParseTask(task, p.cluster.spec, s.request.deadline)
	if err != nil {
		s.end(err)
		return
	}
	p.lastID++
	request.ID = p.lastID
	// A worker would compute the same hashes as the router.
	request.Hashes = s.hashes[routing.BlockKey{
		Version:     routing.Version{Digest: p.layout.ModelDigest, Class: p.layout.ArithmeticClass},
		BlockTokens: p.layout.BlockTokens,
	}]
	s.hashes = nil
	ticket := prefill.GetTicket()
	c := &call{stream: s, process: p, id: request.ID, prefill: prefill, held: int(ticket.GetHeldBlocks()), transfer: ticket.GetTransferId()}
	s.call = c
	p.calls.add(c)
	p.handle(begin(request))
}

// act carries out an action for one call.
func (c *call) act(action worker.Action) {
	p := c.process
	switch a := action.(type) {
	case worker.ReserveKV:
		p.handle(p.reserve(c, a))
	case worker.CancelKV:
		p.receive(receiver.Cancel{ID: c.transfer})
	case worker.SendDecode:
		c.stream.toClient(messageBytes, func() { c.stream.request.decoded(c.stream, a.Event) })
	case worker.OpenTransfer:
		p.open(c.prefill.GetTicket(), c)
	case worker.Offer:
		for layer := range p.layout.Layers {
			c.offer(layer, a.First, a.Blocks)
		}
	case worker.Commit:
		c.session.handle(sender.Commit{ID: c.transfer, Sampled: []int32{a.Sampled}})
	case worker.Abort:
		c.session.handle(sender.Abort{ID: c.transfer, Reason: a.Reason})
	case worker.SendPrefill:
		if began := a.Event.GetStarted(); began != nil {
			use := &p.cluster.prefixes
			use.PromptTokens += len(c.prefill.GetTask().GetTokenIds())
			use.CachedTokens += int(began.GetCachedTokens())
			use.FetchedTokens += int(began.GetFetchedTokens())
		}
		c.stream.toClient(messageBytes, func() { c.stream.request.prefilled(c.stream, a.Event) })
	case worker.Fetch:
		p.storing.want(c, a.Request)
	case worker.End:
		p.calls.remove(c.id)
		c.stream.end(a.Err)
	}
}

// reserve lets a sender write into a sequence's blocks and returns the answer for the core.
func (p *process) reserve(c *call, a worker.ReserveKV) worker.Event {
	ticket := p.ticket(a.Blocks[:a.Prompt:a.Prompt], a.Held, p.member.TransferLease, receiving{p, a.ID})
	if ticket == nil {
		return worker.NotReserved{ID: a.ID, Err: worker.RefusedError(scheduler.QueueFull)}
	}
	c.transfer = ticket.GetTransferId()
	return worker.Reserved{ID: a.ID, Ticket: ticket}
}

func (c *call) offer(layer, first int, blocks []kvcache.BlockID) {
	since := c.process.cluster.now.Sub(c.opened)
	if c.sent.LastOffered == 0 {
		c.sent.FirstOffered = since
	}
	c.sent.LastOffered = since
	step(c.session, (*sender.Core).HandleOffer, sender.Offer{ID: c.transfer, Layer: layer, First: first, Blocks: blocks})
}

// unreached tells the worker's core that the transfer could not begin.
func (c *call) unreached(err error) {
	c.process.handle(worker.NotOpened{ID: c.id, Err: worker.TransferNotStartedError(err, true)})
}

func (c *call) began(s *session) { c.session, c.opened = s, c.process.cluster.now }

func (c *call) accepted() {
	c.sending = true
	c.process.handle(worker.Opened{ID: c.id})
}

func (c *call) shipped(bytes int) {
	c.sent.Bytes += uint64(bytes)
	c.sent.LastSend = c.process.cluster.now.Sub(c.opened)
}

// ended tells the worker's core of the end of the transfer.
func (c *call) ended(e sender.Ended) {
	err := resultError(e.Result)
	if !c.sending {
		if e.Result.End == sender.EndRefused {
			err = worker.TransferRefusedError(e.Result.Refuse, err)
		} else {
			err = worker.TransferNotStartedError(err, e.Result.End == sender.EndBroken)
		}
		c.process.handle(worker.NotOpened{ID: c.id, Err: err})
		return
	}
	c.sending = false
	c.sent.PathBytes, c.sent.PathBusy = e.Pace.Bytes, e.Pace.Busy
	c.process.handle(worker.Sent{ID: c.id, Err: err, Stats: c.stats(c.process.cluster.now, err)})
	c.process.storing.abandon(c)
}

func resultError(r sender.Result) error {
	switch r.End {
	case sender.EndCommitted:
		return nil
	case sender.EndRefused:
		return fmt.Errorf("refused: %v: %s", r.Refuse, r.Detail)
	case sender.EndFailed:
		return fmt.Errorf("the receiver ended it: %v: %s", r.Fail, r.Detail)
	case sender.EndAborted:
		return fmt.Errorf("aborted: %v", r.Abort)
	}
	return errors.Join(errors.New("the stream ended"), r.Err)
}

// stats is the report of a transfer to the router.
func (c *call) stats(now time.Time, err error) *workerv1.KvSent {
	c.sent.Transport = "simulated"
	if err == nil {
		c.sent.Acknowledged = now.Sub(c.opened)
	}
	return c.sent.Message()
}

// gone is the error of a call whose connection was lost.
func gone(id string) error {
	return status.Errorf(codes.Unavailable, "the connection to %s was lost", id)
}
