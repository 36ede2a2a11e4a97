package model_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
)

const (
	layers        = 3
	sliceBytes    = 4
	layout        = 99
	lease         = 9 * time.Second
	answerTimeout = 10 * time.Second
	poolBlocks    = 24
	creditBytes   = 10 * sliceBytes
	maxChunkBytes = 4 * sliceBytes
)

// world is one receiver process, some sender processes and the network between
// them. Nothing in it happens by itself.
type world struct {
	t   *rapid.T
	now time.Time

	receiver *receiver.Core
	epoch    uint64
	closed   bool // the receiver was told to shut down
	// owner of each block of the receiver: 0 is nobody.
	owner        [poolBlocks]uint64
	content      [poolBlocks][layers]uint32
	reservations map[uint64]*reservation
	lastID       uint64
	writes       []write // copies under way at the receiver
	arriving     *kvtransferv1.Chunk

	conns      []*conn
	lastStream receiver.StreamID
	committed  int
	healthy    bool // nothing goes wrong in this history
}

// reservation is what the decode worker knows of one.
type reservation struct {
	ticket             *kvtransferv1.Ticket
	blocks             []kvcache.BlockID
	cancelled, failed  bool
	committed, drained bool
	opened             bool      // some sender took the ticket
	since              time.Time // when it was made
}

func (r *reservation) over() bool { return r.committed || r.drained }

type write struct {
	receiver.Write
	core    *receiver.Core // the process that does it
	payload []byte
	crc32c  uint32
}

// conn is one stream, and the sender process at its end.
type conn struct {
	id         receiver.StreamID
	target     *receiver.Core
	epoch      uint64       // of the target
	core       *sender.Core // nil before the greeting
	senderGone bool         // the sender's end is closed, or its process died
	targetGone bool         // the receiver's end is closed
	closing    bool         // the receiver wants it closed
	cut        bool         // nothing new gets onto it
	up         []*kvtransferv1.SenderMessage
	down       []*kvtransferv1.ReceiverMessage
	reading    *sender.WriteChunk
	asleep     bool
	transfers  map[uint64]*outgoing
}

// outgoing is what the prefill worker knows of a transfer.
type outgoing struct {
	ticket          *kvtransferv1.Ticket
	accepted, ended bool
	result          sender.Result
	committing      bool
	aborted         bool
	descending      bool        // its blocks are offered from the last to the first
	offered         [layers]int // blocks offered of each layer, held ones included
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: time.Unix(1000, 0), reservations: map[uint64]*reservation{}}
	w.startReceiver()
	return w
}

func (w *world) startReceiver() {
	w.epoch++
	w.closed = false
	w.receiver = receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: w.epoch, LayoutDigest: layout, Layers: layers, SliceBytes: sliceBytes,
		Lease: lease, CreditBytes: creditBytes, MaxChunkBytes: maxChunkBytes, MaxReservations: 6, MaxStreams: 4,
	})
	w.owner = [poolBlocks]uint64{}
	w.reservations = map[uint64]*reservation{}
	w.writes = nil
}

// value is what a slice of a transfer holds.
func value(id uint64, layer, block int) uint32 {
	return uint32(id)*1_000_003 + uint32(layer)*1009 + uint32(block) + 1
}

func (w *world) toReceiver(ev receiver.Event) {
	for _, a := range w.receiver.Handle(w.now, ev) {
		switch a := a.(type) {
		case receiver.Send:
			c := w.conn(a.Stream)
			if c.targetGone || c.closing {
				w.t.Fatalf("a message for stream %d, which is closed", a.Stream)
			}
			if !c.cut && !c.senderGone {
				c.down = append(c.down, a.Message)
			}
		case receiver.Write:
			w.writes = append(w.writes, write{Write: a, core: w.receiver, payload: w.arriving.GetPayload(), crc32c: w.arriving.GetCrc32C()})
		case receiver.CloseStream:
			if a.Cause == receiver.Breach {
				w.t.Fatalf("the receiver takes a right sender for a wrong one: %s", a.Detail)
			}
			w.conn(a.Stream).closing = true
		case receiver.Committed:
			w.end(a.ID, "committed", func(r *reservation) bool { return !r.failed && !r.cancelled && !r.over() }, func(r *reservation) { r.committed = true })
			w.checkContent(w.reservations[a.ID], a)
			w.committed++
		case receiver.Failed:
			w.fail(a.ID)
		case receiver.Aborted:
			w.fail(a.ID)
		case receiver.Broken:
			w.fail(a.ID)
		case receiver.Drained:
			w.end(a.ID, "drained", func(r *reservation) bool { return (r.failed || r.cancelled) && !r.over() }, func(r *reservation) { r.drained = true })
		case receiver.Rejected:
			if _, asked := ev.(receiver.Reserve); !asked {
				w.t.Fatal("rejected what was not asked for")
			}
			w.release(ev.(receiver.Reserve).ID)
			delete(w.reservations, ev.(receiver.Reserve).ID)
		}
	}
}

func (w *world) fail(id uint64) {
	r := w.reservations[id]
	if r == nil || r.failed || r.cancelled || r.over() {
		w.t.Fatalf("transfer %d: failed after an end: %+v", id, r)
	}
	r.failed = true
}

// end takes the last callback of a reservation: its blocks are free.
func (w *world) end(id uint64, what string, may func(*reservation) bool, do func(*reservation)) {
	r := w.reservations[id]
	if r == nil || !may(r) {
		w.t.Fatalf("transfer %d: %s after an end: %+v", id, what, r)
	}
	do(r)
	w.release(id)
}

func (w *world) release(id uint64) {
	for _, b := range w.reservations[id].blocks {
		if w.owner[b] != id {
			w.t.Fatalf("block %d of transfer %d has owner %d", b, id, w.owner[b])
		}
		w.owner[b] = 0
	}
}

func (w *world) checkContent(r *reservation, a receiver.Committed) {
	held := int(r.ticket.GetHeldBlocks())
	for i := held; i < len(r.blocks); i++ {
		for layer := range layers {
			if got := w.content[r.blocks[i]][layer]; got != value(a.ID, layer, i) {
				w.t.Fatalf("transfer %d was committed, but layer %d of block %d holds %d", a.ID, layer, i, got)
			}
		}
	}
	if want := uint64((len(r.blocks) - held) * layers * sliceBytes); a.Bytes != want {
		w.t.Fatalf("transfer %d was committed with %d bytes of %d", a.ID, a.Bytes, want)
	}
	if len(a.Sampled) != 1 || a.Sampled[0] != int32(a.ID) {
		w.t.Fatalf("transfer %d was committed with tokens %v", a.ID, a.Sampled)
	}
}

// copyOne ends one copy at the receiver.
func (w *world) copyOne(i int, deviceFails bool) {
	wr := w.writes[i]
	w.writes = append(w.writes[:i:i], w.writes[i+1:]...)
	done := receiver.Written{Stream: wr.Stream, ID: wr.ID, Bytes: wr.Bytes}
	switch {
	case crc32.Checksum(wr.payload, crc32.MakeTable(crc32.Castagnoli)) != wr.crc32c:
		done.Outcome, done.Detail = receiver.Corrupt, "crc"
	case deviceFails:
		done.Outcome, done.Detail = receiver.Unwritable, "device"
	}
	// Even a copy that will fail may have written a part.
	for j, b := range wr.Blocks {
		if w.owner[b] != wr.ID {
			w.t.Fatalf("late write: block %d of transfer %d belongs to %d", b, wr.ID, w.owner[b])
		}
		w.content[b][wr.Layer] = binary.LittleEndian.Uint32(wr.payload[j*sliceBytes:])
	}
	w.toReceiver(done)
}

// check looks at what must hold after every step.
func (w *world) check() {
	owned := 0
	for _, owner := range w.owner {
		if owner != 0 {
			owned++
		}
	}
	sum := 0
	for _, r := range w.reservations {
		if !r.over() {
			sum += len(r.blocks)
		}
	}
	if owned != sum {
		w.t.Fatalf("%d blocks have an owner, %d are reserved", owned, sum)
	}
	for _, c := range w.conns {
		if c.core == nil || !c.core.Lost() || c.reading != nil {
			continue
		}
		for id, o := range c.transfers {
			if !o.ended {
				w.t.Fatalf("transfer %d goes on after the end of its stream", id)
			}
		}
	}
}

func (w *world) describe() string {
	s := fmt.Sprintf("receiver %+v, %d writes;", w.receiver.Stats(), len(w.writes))
	for _, c := range w.conns {
		s += fmt.Sprintf(" stream %d: up %d down %d closing %v cut %v gone %v/%v;", c.id, len(c.up), len(c.down), c.closing, c.cut, c.senderGone, c.targetGone)
	}
	return s
}
