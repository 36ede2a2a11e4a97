package receiver_test

import (
	"slices"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// step does one thing, mostly a valid one.
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
			s.open(lead, id, s.d.below(4))
		}
	case op < 48:
		id := s.recent()
		if f := s.stripeOf(s.reservations[id-1].session, s.d.below(fuzzStripes)); f != nil {
			s.goOn(f, id, op)
		}
	case op < 58:
		s.finish(s.streams[s.d.below(len(s.streams))], receiver.Outcome(s.d.mostly(0, uint64(s.d.below(5)))))
	case op < 62:
		s.other(op)
	case op == 62:
		s.garbage(s.streams[s.d.below(len(s.streams))])
	default:
		s.wrong(s.streams[s.d.below(len(s.streams))], uint64(s.d.below(4)))
	}
}

// recent returns one of the latest reservations.
func (s *sessions) recent() uint64 {
	return uint64(max(len(s.reservations)-s.d.below(fuzzReservations), 1))
}

// connect opens the streams of a session and sends their hellos.
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

// stripeOf returns a stream of a session, or nil.
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

// goOn sends the next message of a transfer on a stripe.
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

// chunk returns a chunk, mostly of slices not sent before.
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

// wrong sends a message that is invalid at this time.
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

// garbage sends random bytes through the codec. If it rejects them, the stream ends.
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

// other does what does not come over a stream.
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
	default:
		switch s.d.below(32) {
		case 0:
			s.handle(receiver.Shutdown{})
		case 1:
			s.handle(receiver.CloseStreams{})
		}
	}
}
