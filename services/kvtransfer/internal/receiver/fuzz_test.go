package receiver_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

const (
	fuzzLayers       = 2
	fuzzBlocks       = 4 // of a reservation, the first held
	fuzzCredit       = 64
	fuzzEncodedBytes = 3
	fuzzReservations = 3
	fuzzStreams      = 5
	fuzzStripes      = 3 // of a session, at most
)

// dice is bytes that choose. At their end it shows zero.
type dice struct{ data []byte }

func (d *dice) byte() int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b)
}

// below is a number under n.
func (d *dice) below(n int) int { return d.byte() % n }

// mostly is right, but for one time in 32.
func (d *dice) mostly(right, wrong uint64) uint64 {
	if d.byte()%32 == 31 {
		return wrong
	}
	return right
}

// fuzzStream is a stream as its reader knows it.
type fuzzStream struct {
	id      receiver.StreamID
	session uint64
	stripe  int
	pending *receiver.Write // the copy that the last message asked for
	closing bool
}

// fuzzReservation is a reservation as its owner knows it.
type fuzzReservation struct {
	blocks               []kvcache.BlockID
	seen                 map[[2]int]bool // slices that were written
	session              uint64          // that it was accepted for
	encoding             kvtransferv1.Encoding
	sequence             map[int]uint32 // by stripe: chunks that were taken
	committed, aborted   [fuzzStripes]bool
	ends, over, landings int
	cancelled            bool
}

// sessions is a core, with senders that are fuzzed.
type sessions struct {
	t            *testing.T
	d            *dice
	core         *receiver.Core
	now          time.Time
	streams      []*fuzzStream
	lastStream   receiver.StreamID
	lastSession  uint64
	reservations []*fuzzReservation    // by id, from 1
	opening      kvtransferv1.Encoding // of the last Open
	asking       *fuzzStream           // that the last message came over
}

func (s *sessions) reservation(id uint64) *fuzzReservation {
	if id == 0 || id > uint64(len(s.reservations)) {
		s.t.Fatalf("reservation %d never was", id)
	}
	return s.reservations[id-1]
}

func (s *sessions) stream(id receiver.StreamID) *fuzzStream {
	i := slices.IndexFunc(s.streams, func(f *fuzzStream) bool { return f.id == id })
	if i < 0 {
		s.t.Fatalf("stream %d has ended or never was", id)
	}
	return s.streams[i]
}

func (s *sessions) handle(ev receiver.Event) {
	for _, a := range handle(s.core, s.now, ev) {
		switch a := a.(type) {
		case receiver.Rejected:
			s.reservations[len(s.reservations)-1].over++
		case receiver.Send:
			s.stream(a.Stream)
			if accept := a.Message.GetAccept(); accept != nil {
				r := s.reservation(accept.GetTransferId())
				r.session, r.encoding = s.asking.session, max(s.opening, kvtransferv1.Encoding_ENCODING_NATIVE)
			}
		case *receiver.Grant:
			if s.stream(a.Stream); a.Bytes <= 0 || a.Bytes > fuzzCredit {
				s.t.Fatalf("grants %d bytes", a.Bytes)
			}
		case *receiver.Write:
			s.write(a)
		case receiver.CloseStream:
			s.stream(a.Stream).closing = true
		case receiver.Committed:
			r := s.end(a.ID)
			r.over++
			if s.copies(a.ID) > 0 || r.landings != len(r.seen) || len(r.seen) != fuzzLayers*(fuzzBlocks-1) {
				s.t.Fatalf("committed with %d slices, %d landed", len(r.seen), r.landings)
			}
			if a.Approximate != (r.encoding == kvtransferv1.Encoding_ENCODING_INT8) {
				s.t.Fatalf("approximate is %v of encoding %s", a.Approximate, r.encoding)
			}
		case receiver.Failed:
			s.end(a.ID)
		case receiver.Aborted:
			s.end(a.ID)
		case receiver.Broken:
			s.end(a.ID)
		case receiver.Drained:
			r := s.reservation(a.ID)
			if r.over++; s.copies(a.ID) > 0 || r.over > 1 || r.ends == 0 && !r.cancelled {
				s.t.Fatalf("drained with %d copies under way: %+v", s.copies(a.ID), r)
			}
		}
	}
	if stats := s.core.Stats(); stats.Reserved+stats.Open+stats.Ending > fuzzReservations || stats.Streams > len(s.streams) {
		s.t.Fatalf("%+v with %d streams", stats, len(s.streams))
	}
}

// end books what an owner is told: once, and not after its own cancel.
func (s *sessions) end(id uint64) *fuzzReservation {
	r := s.reservation(id)
	if r.ends++; r.ends > 1 || r.cancelled || r.over > 0 {
		s.t.Fatalf("a second end: %+v", r)
	}
	return r
}

// copies are those under way into a reservation.
func (s *sessions) copies(id uint64) (n int) {
	for _, f := range s.streams {
		if f.pending != nil && f.pending.ID == id {
			n++
		}
	}
	return n
}

func (s *sessions) write(w *receiver.Write) {
	r, f := s.reservation(w.ID), s.stream(w.Stream)
	size := sliceBytes
	if w.Encoding == kvtransferv1.Encoding_ENCODING_INT8 {
		size = fuzzEncodedBytes
	}
	if r.over > 0 || r.ends > 0 || r.cancelled || f.closing || f.pending != nil ||
		max(w.Encoding, kvtransferv1.Encoding_ENCODING_NATIVE) != r.encoding || w.Bytes != size*len(w.Blocks) || w.Bytes > fuzzCredit || w.Layer < 0 || w.Layer >= fuzzLayers {
		s.t.Fatalf("write %+v of %+v", w, r)
	}
	for _, b := range w.Blocks {
		slice := [2]int{w.Layer, int(b)}
		if !slices.Contains(r.blocks[1:], b) || r.seen[slice] {
			s.t.Fatalf("write %+v into block %d of %+v", w, b, r)
		}
		r.seen[slice] = true
	}
	r.sequence[f.stripe]++
	f.pending = w
}

// finish ends the copy that a stream waits for.
func (s *sessions) finish(f *fuzzStream, outcome receiver.Outcome) {
	w := f.pending
	if w == nil {
		return
	}
	f.pending = nil
	if outcome == receiver.Landed {
		s.reservation(w.ID).landings += len(w.Blocks)
	}
	s.handle(receiver.Written{Stream: f.id, ID: w.ID, Bytes: w.Bytes, Outcome: outcome})
}

func (s *sessions) closed(f *fuzzStream) {
	s.finish(f, receiver.Landed)
	s.streams = slices.DeleteFunc(s.streams, func(x *fuzzStream) bool { return x == f })
	s.handle(receiver.StreamClosed{Stream: f.id})
}

// receive gives a message of a stream, once the copy of the one before has ended.
func (s *sessions) receive(f *fuzzStream, m *kvtransferv1.SenderMessage) {
	s.finish(f, receiver.Landed)
	s.asking = f
	s.handle(received(f.id, m))
}

// step does one thing; most are right.
func (s *sessions) step() {
	switch op := s.d.below(64); {
	case op == 0 || len(s.streams) == 0:
		s.connect()
	case op < 4 || len(s.reservations) == 0:
		s.reserve()
	case op < 10:
		id := s.recent()
		lead := s.stripeOf(s.streams[s.d.below(len(s.streams))].session, 0)
		if r := s.reservations[id-1]; lead != nil && (r.session == 0 || s.d.below(8) == 0) {
			s.open(lead, id, s.d.below(3))
		}
	case op < 48:
		id := s.recent()
		if f := s.stripeOf(s.reservations[id-1].session, s.d.below(fuzzStripes)); f != nil {
			s.goOn(f, id, op)
		}
	case op < 58:
		s.finish(s.streams[s.d.below(len(s.streams))], receiver.Outcome(s.d.mostly(0, uint64(s.d.below(3)))))
	case op < 62:
		s.other(op)
	case op == 62:
		s.garbage(s.streams[s.d.below(len(s.streams))])
	default:
		s.wrong(s.streams[s.d.below(len(s.streams))], uint64(s.d.below(4)))
	}
}

// recent is one of the last reservations.
func (s *sessions) recent() uint64 {
	return uint64(max(len(s.reservations)-s.d.below(fuzzReservations), 1))
}

// connect opens the streams of a session and greets on them.
func (s *sessions) connect() {
	s.lastSession++
	session, stripes := s.lastSession, 1+s.d.below(fuzzStripes)
	for i := range stripes {
		if len(s.streams) == fuzzStreams+1 {
			s.closed(s.streams[s.d.below(len(s.streams))])
		}
		s.lastStream++
		f := &fuzzStream{id: s.lastStream, session: session, stripe: i}
		s.streams = append(s.streams, f)
		s.handle(receiver.StreamOpened{Stream: f.id})
		s.greet(f, stripes, 2)
	}
}

func (s *sessions) greet(f *fuzzStream, stripes int, version uint32) {
	s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
		Version: version, LayoutDigest: s.d.mostly(layout, 1), Session: f.session, Stripe: uint32(f.stripe), Stripes: uint32(stripes)}}})
}

// stripeOf is a stream of a session, or nil.
func (s *sessions) stripeOf(session uint64, stripe int) *fuzzStream {
	i := slices.IndexFunc(s.streams, func(f *fuzzStream) bool { return f.session == session && f.stripe == stripe })
	if i < 0 {
		return nil
	}
	return s.streams[i]
}

func (s *sessions) reserve() {
	first := kvcache.BlockID(10 * len(s.reservations))
	r := &fuzzReservation{
		blocks: []kvcache.BlockID{first, first + 3, first + 1, first + 2}, seen: map[[2]int]bool{}, sequence: map[int]uint32{},
	}
	s.reservations = append(s.reservations, r)
	s.handle(receiver.Reserve{ID: uint64(len(s.reservations)), Secret: secret, Blocks: r.blocks, Held: 1})
}

func (s *sessions) open(f *fuzzStream, id uint64, encoding int) {
	s.opening = kvtransferv1.Encoding(encoding)
	s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
		TransferId: id, Epoch: s.d.mostly(epoch, 1), Secret: s.d.mostly(secret, 1), LayoutDigest: s.d.mostly(layout, 1), Encoding: s.opening}}})
}

// goOn says over a stripe what comes next of a transfer.
func (s *sessions) goOn(f *fuzzStream, id uint64, op int) {
	r := s.reservations[id-1]
	switch {
	case r.ends > 0 && !r.aborted[f.stripe], op == 46 && s.d.below(4) == 0:
		r.aborted[f.stripe] = true
		s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{Abort: &kvtransferv1.Abort{TransferId: id}}})
	case op == 47:
		s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{Renew: &kvtransferv1.Renew{TransferIds: []uint64{id, 0}}}})
	case len(r.seen) < fuzzLayers*(fuzzBlocks-1) && !r.committed[f.stripe] && s.d.mostly(1, 0) == 1:
		s.receive(f, s.chunk(f, id))
	case !r.committed[f.stripe]:
		r.committed[f.stripe] = true
		m := &kvtransferv1.Commit{TransferId: id, Epoch: epoch, Chunks: r.sequence[f.stripe]}
		if f.stripe == 0 {
			m.SampledTokenIds = []uint32{5}
		}
		m.Crc32C = uint32(s.d.mostly(uint64(wire.CommitChecksum(m)), 1))
		s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Commit{Commit: m}})
	}
}

// chunk is of slices that were not sent, but for some.
func (s *sessions) chunk(f *fuzzStream, id uint64) *kvtransferv1.SenderMessage {
	r := s.reservations[id-1]
	layer := s.d.below(fuzzLayers)
	again := s.d.mostly(0, 1) == 1
	var runs []uint32
	count := 0
	for block := 1; block < fuzzBlocks; block++ {
		if seen := r.seen[[2]int{layer, int(r.blocks[block])}]; seen == again && s.d.below(3) > 0 {
			runs = append(runs, uint32(block), 1)
			count++
		}
	}
	size := sliceBytes
	if r.encoding == kvtransferv1.Encoding_ENCODING_INT8 {
		size = fuzzEncodedBytes
	}
	if count == 0 {
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{}}
	}
	m := chunk(uint32(s.d.mostly(uint64(r.sequence[f.stripe]), 77)), uint32(layer), size*count, runs...)
	m.GetChunk().TransferId = id
	return m
}

// wrong says what no sender says at that time.
func (s *sessions) wrong(f *fuzzStream, id uint64) {
	switch s.d.below(6) {
	case 0:
		s.greet(&fuzzStream{id: f.id, session: uint64(s.d.below(3)), stripe: s.d.below(10)}, s.d.below(10), uint32(s.d.below(3)))
	case 1:
		s.open(f, id, s.d.below(5))
	case 2, 3:
		m := chunk(uint32(s.d.below(3)), uint32(s.d.below(3)), s.d.below(fuzzCredit+2), uint32(s.d.below(5)), uint32(s.d.below(5)), uint32(s.d.mostly(3, 1<<32-1)), uint32(s.d.mostly(1, 1<<32-1)))
		m.GetChunk().TransferId = id
		s.receive(f, m)
	case 4:
		m := commit(uint32(s.d.below(3)), s.d.mostly(epoch, 1), 1<<31)
		m.GetCommit().TransferId = id
		s.receive(f, m)
	default:
		s.receive(f, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{Abort: &kvtransferv1.Abort{TransferId: id}}})
	}
}

// garbage is bytes off the network, as the codec takes them. What it does not take
// ends the stream.
func (s *sessions) garbage(f *fuzzStream) {
	n := min(s.d.byte(), len(s.d.data))
	in := new(wire.Inbound)
	defer in.Free()
	s.finish(f, receiver.Landed)
	err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(slices.Clone(s.d.data[:n]))}, in)
	s.d.data = s.d.data[n:]
	switch {
	case err != nil:
		s.closed(f)
	case in.Message != nil:
		s.asking = f
		s.opening = in.Message.GetOpen().GetEncoding()
		s.handle(receiver.Received{Stream: f.id, Message: in.Message})
	default:
		s.handle(receiver.Received{Stream: f.id, Chunk: &in.Chunk})
	}
}

// other is what does not come over a stream.
func (s *sessions) other(op int) {
	switch {
	case op == 58:
		s.now = s.now.Add(time.Second)
		if next, ok := s.core.Next(); ok && s.d.below(8) == 0 {
			s.now = next
		}
		s.handle(receiver.Tick{})
	case op == 59 && s.d.below(2) == 0:
		id := s.recent()
		r := s.reservations[id-1]
		r.cancelled = r.cancelled || r.ends == 0 && r.over == 0
		s.handle(receiver.Cancel{ID: id})
	case op == 60 && s.d.below(4) == 0:
		s.closed(s.streams[s.d.below(len(s.streams))])
	case s.d.below(16) == 15:
		s.handle(receiver.Shutdown{})
	case s.d.below(16) == 15:
		s.handle(receiver.CloseStreams{})
	}
}

// FuzzSessions lets several senders do anything, over streams that end at any time
// and with copies that take their time. No byte lands outside of a reservation,
// twice, or after its end; every reservation ends once; nothing is left.
func FuzzSessions(f *testing.F) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 600)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &sessions{t: t, d: &dice{data}, now: start, core: receiver.New(receiver.Config{
			WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: fuzzLayers, SliceBytes: sliceBytes,
			Encoding: kvtransferv1.Encoding_ENCODING_INT8, EncodedBytes: fuzzEncodedBytes,
			Lease: lease, CreditBytes: fuzzCredit, MaxChunkBytes: 4 * sliceBytes, MaxReservations: fuzzReservations, MaxStreams: fuzzStreams,
		})}
		for len(s.d.data) > 0 {
			s.step()
		}
		for len(s.streams) > 0 {
			s.closed(s.streams[0])
		}
		s.handle(receiver.Shutdown{})
		for i, r := range s.reservations {
			if r.over != 1 {
				t.Errorf("reservation %d: %+v", i+1, r)
			}
		}
		if !s.core.Idle() {
			t.Errorf("something is left: %+v", s.core.Stats())
		}
	})
}
