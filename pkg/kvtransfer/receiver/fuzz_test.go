package receiver_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	fuzzLayers       = 2
	fuzzBlocks       = 4 // per reservation; the first is held
	fuzzCredit       = 64
	fuzzEncodedBytes = 3
	fuzzReservations = 3
	fuzzStreams      = 5
	fuzzStripes      = 3 // maximum per session
)

// dice reads random choices from bytes, zeros at their end.
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

// mostly returns right, and wrong one time in 32.
func (d *dice) mostly(right, wrong uint64) uint64 {
	if d.byte()%32 == 31 {
		return wrong
	}
	return right
}

// fuzzStream is a stream as seen by its reader.
type fuzzStream struct {
	id      receiver.StreamID
	session uint64
	stripe  int
	pending *receiver.Write // the copy requested by the last message
	closing bool
}

// fuzzReservation is a reservation as seen by its owner.
type fuzzReservation struct {
	blocks               []kvcache.BlockID
	seen                 map[[2]int]bool // slices written
	session              uint64          // that opened it
	encoding             kvtransferv1.Encoding
	sequence             map[int]uint32 // by stripe: chunks accepted
	committed, aborted   [fuzzStripes]bool
	ends, over, landings int
	cancelled            bool
}

// sessions is a core with fuzzed senders.
type sessions struct {
	t            *testing.T
	d            *dice
	core         *receiver.Core
	now          time.Time
	streams      []*fuzzStream
	lastStream   receiver.StreamID
	lastSession  uint64
	reservations []*fuzzReservation    // by id, from 1
	opening      kvtransferv1.Encoding // of the latest Open
	asking       *fuzzStream           // source of the last message
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

// end checks that an owner's callback comes once, and not after its own cancel.
func (s *sessions) end(id uint64) *fuzzReservation {
	r := s.reservation(id)
	if r.ends++; r.ends > 1 || r.cancelled || r.over > 0 {
		s.t.Fatalf("a second end: %+v", r)
	}
	return r
}

// copies counts the copies in progress into a reservation.
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

// finish ends a stream's pending copy.
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

// receive handles a message of a stream after its previous copy has ended.
func (s *sessions) receive(f *fuzzStream, m *kvtransferv1.SenderMessage) {
	s.finish(f, receiver.Landed)
	s.asking = f
	s.handle(received(f.id, m))
}

// FuzzSessions runs several fuzzed senders whose streams end at any time, with slow copies.
// No byte is written outside a reservation, twice, or after its end; every reservation ends
// once; nothing is left.
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
			Encoding: kvtransferv1.Encoding_ENCODING_INT8, EncodedBytes: fuzzEncodedBytes, Lends: true,
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
