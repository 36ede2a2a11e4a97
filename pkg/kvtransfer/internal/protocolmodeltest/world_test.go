package protocolmodeltest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	layers        = 3
	sliceBytes    = 4
	encodedBytes  = 2
	layout        = 99
	lease         = 9 * time.Second
	answerTimeout = 10 * lease
	patience      = lease // of a sender: the minimum of the two
	poolBlocks    = 24
	creditBytes   = 10 * sliceBytes
	maxChunkBytes = 4 * sliceBytes
)

// tester receives failures.
type tester interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// world is one receiver process, some sender processes and the network between them.
// Nothing happens in it by itself.
type world struct {
	t       tester
	history []event
	now     time.Time

	receiver *receiver.Core
	epoch    uint64
	encoding kvtransferv1.Encoding // requested by tickets
	views    bool                  // pages are in host memory
	lends    bool                  // senders may lend
	shares   bool                  // senders may map the pages
	loans    map[uint64]*loan      // lent and not taken
	lastLoan uint64
	closed   bool // the receiver is shutting down
	// owner of each of the receiver's blocks; 0: none.
	owner        [poolBlocks]uint64
	content      [poolBlocks][layers][sliceBytes]byte
	reservations map[uint64]*reservation
	lastID       uint64
	arriving     *wire.Inbound // message being handled by the receiver
	copies       []*landing    // in progress at the receiver

	sessions   []*session
	lastStream receiver.StreamID
	committed  int
	healthy    bool // no faults in this history
}

// reservation is the decode worker's view of one.
type reservation struct {
	ticket             *kvtransferv1.Ticket
	blocks             []kvcache.BlockID
	cancelled, failed  bool
	committed, drained bool
	opened             bool       // a sender used the ticket
	shared             []*session // whose senders may write into its blocks
}

func (r *reservation) over() bool { return r.committed || r.drained }

// mapped reports whether a sender that used the ticket has the pages mapped, for all that the
// receiver knows.
func (r *reservation) mapped() bool {
	return slices.ContainsFunc(r.shared, func(s *session) bool { return s.mapping == mapped || s.mapping == untold })
}

// landing is a copy at the receiver.
type landing struct {
	receiver.Write
	message *wire.Inbound
}

// newWorld returns a world without processes. The first event must be start.
func newWorld(t tester) *world {
	return &world{t: t, now: time.Unix(1000, 0), loans: map[uint64]*loan{}}
}

// fatalf reports an error with the history that led to it, in the form of
// histories_test.go.
func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	text := ""
	for _, e := range w.history {
		text += strings.ReplaceAll(fmt.Sprintf("\t%#v,\n", e), "model_test.", "")
	}
	w.t.Logf("history:\n%s", text)
	w.t.Fatalf(format, args...)
}

func (w *world) startReceiver(how start) {
	w.epoch++
	w.closed, w.views, w.lends, w.shares = false, how.views, how.lends, how.shares
	w.encoding = kvtransferv1.Encoding_ENCODING_NATIVE
	if how.encoded {
		w.encoding = kvtransferv1.Encoding_ENCODING_INT8
	}
	w.receiver = receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: w.epoch, LayoutDigest: layout, Layers: layers, SliceBytes: sliceBytes,
		Encoding: w.encoding, EncodedBytes: encodedBytes, Lends: w.lends, Shares: w.shares,
		Lease: lease, CreditBytes: creditBytes, MaxChunkBytes: maxChunkBytes, MaxReservations: 6, MaxStreams: 8,
		Observe: func(x receiver.Transition) { w.observe("receiver", x, x.Allowed()) },
	})
	w.owner = [poolBlocks]uint64{}
	w.reservations = map[uint64]*reservation{}
	w.copies = nil
	for _, s := range w.sessions {
		s.mapping = unmapped // it is of memory that nobody has any more
	}
}

// observe fails on transitions missing from the table.
func (w *world) observe(side string, x fmt.Stringer, allowed bool) {
	if !allowed {
		w.fatalf("the %s's table does not have %s", side, x)
	}
}

// value is the content of a transfer's slice.
func value(id uint64, layer, block int) uint32 {
	return uint32(id)*1_000_003 + uint32(layer)*1009 + uint32(block) + 1
}

// tokens are those sampled by a transfer's sender.
func tokens(id uint64) []int32 {
	all := make([]int32, 8)
	for i := range all {
		all[i] = int32(id)<<20 + int32(i)
	}
	return all
}

func (w *world) toReceiver(ev receiver.Event) {
	for _, a := range w.receiver.Handle(w.now, ev) {
		switch a := a.(type) {
		case receiver.Send:
			s, st := w.stream(a.Stream)
			if st.targetGone || st.closing {
				w.fatalf("a message for stream %d, which is closed", a.Stream)
			}
			w.putDown(s, st, a.Message)
		case *receiver.Grant:
			s, st := w.stream(a.Stream)
			w.putDown(s, st, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Grant{
				Grant: &kvtransferv1.Grant{CreditBytes: uint64(a.Bytes)}}})
		case *receiver.Write:
			l := &landing{Write: *a, message: w.arriving}
			l.Blocks = append([]kvcache.BlockID(nil), a.Blocks...)
			w.copies = append(w.copies, l)
			w.arriving = nil
		case receiver.CloseStream:
			s, st := w.stream(a.Stream)
			if a.Cause == receiver.Breach && !s.spoilt {
				w.fatalf("the receiver takes a right sender for a wrong one: %s", a.Detail)
			}
			if w.healthy {
				w.fatalf("the receiver gives a healthy stream up: %s", a.Detail)
			}
			st.closing = true
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
		case receiver.MayMap:
			s, _ := w.stream(a.Stream)
			s.mapping = mapped
		case receiver.MayNotMap:
			if w.healthy {
				w.fatalf("a healthy sender may not map the pages: %s", a.Why)
			}
		case receiver.Rejected:
			reserve, asked := ev.(receiver.Reserve)
			if !asked {
				w.fatalf("rejected what was not asked for")
			}
			w.release(reserve.ID)
			delete(w.reservations, reserve.ID)
		}
	}
}

func (w *world) fail(id uint64) {
	r := w.reservations[id]
	if r == nil || r.failed || r.cancelled || r.over() {
		w.fatalf("transfer %d: failed after an end: %+v", id, r)
	}
	r.failed = true
}

// end handles the last callback of a reservation, which frees its blocks.
func (w *world) end(id uint64, what string, may func(*reservation) bool, do func(*reservation)) {
	r := w.reservations[id]
	if r == nil || !may(r) {
		w.fatalf("transfer %d: %s after an end: %+v", id, what, r)
	}
	for _, l := range w.copies {
		if l.ID == id {
			w.fatalf("transfer %d: %s while a copy is under way", id, what)
		}
	}
	do(r)
	w.release(id)
}

func (w *world) release(id uint64) {
	for _, b := range w.reservations[id].blocks {
		if w.owner[b] != id {
			w.fatalf("block %d of transfer %d has owner %d", b, id, w.owner[b])
		}
		w.owner[b] = 0
	}
}

func (w *world) checkContent(r *reservation, a receiver.Committed) {
	held, mask, size := int(r.ticket.GetHeldBlocks()), ^uint32(0), sliceBytes
	if a.Approximate {
		mask, size = 1<<16-1, encodedBytes
	}
	for i := held; i < len(r.blocks); i++ {
		for layer := range layers {
			if got := binary.LittleEndian.Uint32(w.content[r.blocks[i]][layer][:]); got != value(a.ID, layer, i)&mask {
				w.fatalf("transfer %d was committed, but layer %d of block %d holds %d", a.ID, layer, i, got)
			}
		}
	}
	if want := uint64((len(r.blocks) - held) * layers * size); a.Bytes != want {
		w.fatalf("transfer %d was committed with %d bytes of %d", a.ID, a.Bytes, want)
	}
	if !slices.Equal(a.Sampled, tokens(a.ID)) {
		w.fatalf("transfer %d was committed with tokens %v", a.ID, a.Sampled)
	}
}

// copyOne ends one copy at the receiver.
func (w *world) copyOne(i int, deviceFails bool) {
	l := w.copies[i]
	w.copies = append(w.copies[:i:i], w.copies[i+1:]...)
	done := receiver.Written{Stream: l.Stream, ID: l.ID, Bytes: l.Bytes}
	pages := &target{w: w, transfer: l.ID}
	var coding wire.Coding
	if l.Encoding == kvtransferv1.Encoding_ENCODING_INT8 {
		coding = halving{}
	}
	copyTo := func() error { return l.message.CopyTo(pages, l.Blocks, coding) }
	if l.Encoding == kvtransferv1.Encoding_ENCODING_LENT {
		copyTo = func() error { return l.message.TakeTo(pages, l.Blocks) }
	}
	if l.Encoding == kvtransferv1.Encoding_ENCODING_SHARED {
		copyTo = func() error { return l.message.Verify(pages, l.Blocks) }
	}
	switch err := copyTo(); {
	case errors.Is(err, engine.ErrNotLent):
		if w.healthy {
			w.fatalf("transfer %d: what is taken was taken back", l.ID)
		}
		done.Outcome, done.Detail = receiver.Withdrawn, err.Error()
	case err != nil:
		done.Outcome, done.Detail = receiver.Corrupt, err.Error()
	case deviceFails: // possibly after a partial write
		done.Outcome, done.Detail = receiver.Unwritable, "device"
	}
	l.message.Free()
	w.toReceiver(done)
}

// check checks the invariants.
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
		w.fatalf("%d blocks have an owner, %d are reserved", owned, sum)
	}
	for _, s := range w.sessions {
		if s.core == nil || !s.core.Lost() || s.reading() {
			continue
		}
		for id, o := range s.transfers {
			if !o.ended {
				w.fatalf("transfer %d goes on after the end of its session", id)
			}
		}
	}
}

func (w *world) describe() string {
	text := fmt.Sprintf("receiver %+v, %d copies;", w.receiver.Stats(), len(w.copies))
	for i, s := range w.sessions {
		text += fmt.Sprintf(" session %d, spoilt %v:", i, s.spoilt)
		for _, st := range s.stripes {
			text += fmt.Sprintf(" stream %d: up %d down %d closing %v cut %v gone %v/%v;", st.id, len(st.up), len(st.down), st.closing, st.cut, s.gone, st.targetGone)
		}
	}
	return text
}
