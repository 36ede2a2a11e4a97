package kvtransfer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// join opens a raw stream to the rig's receiver, for a misbehaving sender.
func (g *rig) join(t *testing.T, epoch uint64) (kvtransferv1.KVTransfer_StreamClient, func()) {
	t.Helper()
	conn, err := g.dial("passthrough:///memory")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := kvtransferv1.NewKVTransferClient(conn).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	say(t, stream, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
		Sender: "raw", Epoch: 1, Version: 2, LayoutDigest: g.to.Layout().Digest()}}})
	if m := hear(t, stream); m.GetHello().GetEpoch() != epoch {
		t.Fatalf("greeting %v", m)
	}
	return stream, func() { cancel(); _ = conn.Close() }
}

func say(t *testing.T, stream kvtransferv1.KVTransfer_StreamClient, m *kvtransferv1.SenderMessage) {
	t.Helper()
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, stream kvtransferv1.KVTransfer_StreamClient) *kvtransferv1.ReceiverMessage {
	t.Helper()
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openMessage(ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
		TransferId: ticket.GetTransferId(), Epoch: ticket.GetEpoch(), Secret: ticket.GetSecret(), LayoutDigest: ticket.GetLayoutDigest()}}}
}

func chunkMessage(ticket *kvtransferv1.Ticket, size int, crc uint32) *kvtransferv1.SenderMessage {
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Chunk{Chunk: &kvtransferv1.Chunk{
		TransferId: ticket.GetTransferId(), Runs: []*kvtransferv1.Run{{FirstBlock: 0, Blocks: 1}},
		Crc32C: crc, Payload: make([]byte, size)}}}
}

// A corrupt payload fails its transfer. The blocks stay in quarantine until the sender
// acknowledges or its stream ends.
func TestSpoiltPayload(t *testing.T) {
	for _, end := range []string{"abort", "the stream ends", "silence"} {
		t.Run(end, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
				stream, leave := g.join(t, 7)
				defer leave()
				say(t, stream, openMessage(ticket))
				if m := hear(t, stream); m.GetAccept() == nil {
					t.Fatalf("open is answered by %v", m)
				}
				say(t, stream, chunkMessage(ticket, sliceBytes, 12345))
				synctest.Wait()
				if failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_CHECKSUM || o.isDrained() {
					t.Fatalf("ended with %v, drained: %v", o.err, o.isDrained())
				}
				begun := time.Now()
				switch end {
				case "abort":
					say(t, stream, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{Abort: &kvtransferv1.Abort{
						TransferId: ticket.GetTransferId(), Reason: kvtransferv1.AbortReason_ABORT_REASON_ACKNOWLEDGED}}})
				case "the stream ends":
					leave()
				}
				<-o.over
				if waited := time.Since(begun); (waited > 0) != (end == "silence") || waited > lease {
					t.Errorf("drained after %v", waited)
				}
			})
		})
	}
}

func TestCreditIsEnforced(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		stream, leave := g.join(t, 7)
		defer leave()
		say(t, stream, openMessage(ticket))
		hear(t, stream)
		say(t, stream, chunkMessage(ticket, 2001, 0))
		if m, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the stream goes on with %v, %v", m, err)
		}
		wait(t, "drained", o.over)
		if failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_PROTOCOL {
			t.Errorf("ended with %v", o.err)
		}
	})
}

// A sender keeps its connection open and falls silent.
func TestSilentSender(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		stream, leave := g.join(t, 7)
		defer leave()
		say(t, stream, openMessage(ticket))
		begun := time.Now()
		<-o.over
		if waited := time.Since(begun); waited > 2*lease || failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_EXPIRED {
			t.Errorf("after %v: %v", waited, o.err)
		}
	})
}

// mute is a receiver that sends its hello and scripted answers only.
type mute struct {
	kvtransferv1.UnimplementedKVTransferServer
	digest  uint64
	accepts bool
	greets  bool
}

func (m mute) Stream(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		var answer *kvtransferv1.ReceiverMessage
		switch {
		case got.GetHello() != nil && m.greets:
			answer = &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Hello{Hello: &kvtransferv1.ReceiverHello{
				Receiver: "decode-0", Epoch: 7, Version: 2, CreditBytes: 450, MaxChunkBytes: 450, LayoutDigest: m.digest}}}
		case got.GetOpen() != nil && m.accepts:
			answer = &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{
				Accept: &kvtransferv1.Accept{TransferId: got.GetOpen().GetTransferId()}}}
		default:
			continue
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// A silent receiver holds the sender's blocks for at most a lease, whatever the sender's
// answer timeout.
func TestSilentReceiver(t *testing.T) {
	const shortLease = kvtransfer.DefaultAnswerTimeout / 4
	for _, test := range []struct {
		name  string
		mute  mute
		after func(*kvtransfer.Transfer)
		want  time.Duration
	}{
		{"no greeting", mute{}, nil, kvtransfer.DefaultConnectTimeout},
		{"no accept", mute{greets: true}, nil, shortLease},
		{"no grant", mute{greets: true, accepts: true}, func(tr *kvtransfer.Transfer) { sendAll(tr, kvcache.BlockRange(0, 6), 0, 6) }, shortLease},
		{"no committed", mute{greets: true, accepts: true}, func(tr *kvtransfer.Transfer) { tr.Commit(nil) }, shortLease},
	} {
		t.Run(test.name, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				g.stop()
				_ = g.listener.Close()
				g.listener = newListener()
				server := grpc.NewServer()
				test.mute.digest = g.to.Layout().Digest()
				kvtransferv1.RegisterKVTransferServer(server, test.mute)
				var tasks sync.WaitGroup
				listener := g.listener
				tasks.Go(func() { _ = server.Serve(listener) })
				defer tasks.Wait()
				defer server.Stop()

				ticket, o := g.reserve(kvcache.BlockRange(0, 6), 0, 6)
				defer func() { <-o.over }()
				ticket.Lease = durationpb.New(shortLease)
				begun := time.Now()
				tr, err := g.sender.Open(t.Context(), ticket, "r")
				if test.after != nil {
					if err != nil {
						t.Fatal(err)
					}
					test.after(tr)
					<-tr.Done()
					err = tr.Err()
				}
				if !isBroken(err) || time.Since(begun) != test.want {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

func TestSenderClose(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		tr := g.open(ticket)
		if err := g.sender.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wait(t, "done", tr.Done())
		wait(t, "drained", o.over)
		for _, err := range []error{o.err, tr.Err()} {
			if abortReason(err) != kvtransferv1.AbortReason_ABORT_REASON_CANCELLED {
				t.Errorf("ended with %v", err)
			}
		}
		if _, err := g.sender.Open(t.Context(), ticket, "r"); !errors.Is(err, kvtransfer.ErrClosed) {
			t.Errorf("open gives %v", err)
		}
	})
}

func TestReceiverShutdown(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		layout := kvtransfertest.Layout(layers, sliceBytes)
		g := newRig(t, streams)
		second, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
			WorkerID: "decode-1", Epoch: 70, Addresses: []string{"passthrough:///memory"}, Layout: layout,
		}, g.to)
		if err != nil {
			t.Fatal(err)
		}
		g.listener = newListener()
		server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec()))
		second.Register(server)
		var tasks sync.WaitGroup
		listener := g.listener
		tasks.Go(func() { _ = server.Serve(listener) })
		defer tasks.Wait()
		defer server.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		tasks.Go(func() { ran <- second.Run(ctx) })

		reserve := func() (*kvtransferv1.Ticket, *outcome) {
			o := &outcome{t: t, over: make(chan struct{})}
			ticket, err := second.Reserve(o.reservation(kvcache.BlockRange(0, 2), 0, 2))
			if err != nil {
				t.Fatal(err)
			}
			return ticket, o
		}
		_, unopened := reserve()
		ticket, open := reserve()
		quiet, silent := reserve()
		tr := g.open(ticket)
		stream, leave := g.join(t, 70)
		defer leave()
		say(t, stream, openMessage(quiet))
		hear(t, stream)

		begun := time.Now()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if time.Since(begun) != kvtransfer.DefaultShutdownGrace {
			t.Errorf("run ends after %v", time.Since(begun))
		}
		for _, o := range []*outcome{unopened, open, silent} {
			wait(t, "drained", o.over)
			if failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_SHUTDOWN {
				t.Errorf("ended with %v", o.err)
			}
		}
		wait(t, "done", tr.Done())
		if failReason(tr.Err()) != kvtransferv1.FailReason_FAIL_REASON_SHUTDOWN {
			t.Errorf("the sender was told %v", tr.Err())
		}
		o := &outcome{t: t, over: make(chan struct{})}
		if _, err := second.Reserve(o.reservation(nil, 0, 0)); !errors.Is(err, kvtransfer.ErrClosed) {
			t.Errorf("reserve gives %v", err)
		}
	})
}

func TestConfigurationsAreChecked(t *testing.T) {
	layout := kvtransfertest.Layout(layers, sliceBytes)
	good := kvtransfer.ReceiverConfig{WorkerID: "d", Epoch: 1, Addresses: []string{"a:1"}, Layout: layout}
	for name, change := range map[string]func(*kvtransfer.ReceiverConfig){
		"no worker id":                 func(c *kvtransfer.ReceiverConfig) { c.WorkerID = "" },
		"no epoch":                     func(c *kvtransfer.ReceiverConfig) { c.Epoch = 0 },
		"no address":                   func(c *kvtransfer.ReceiverConfig) { c.Addresses = nil },
		"no layers":                    func(c *kvtransfer.ReceiverConfig) { c.Layout.Layers = 0 },
		"a negative lease":             func(c *kvtransfer.ReceiverConfig) { c.Lease = -1 },
		"a lease that no sender takes": func(c *kvtransfer.ReceiverConfig) { c.Lease = 99 * time.Millisecond },
		"credit that no sender takes":  func(c *kvtransfer.ReceiverConfig) { c.CreditBytes = 1<<40 + 1 },
		"a long name":                  func(c *kvtransfer.ReceiverConfig) { c.WorkerID = strings.Repeat("d", 257) },
		"chunks below a slice":         func(c *kvtransfer.ReceiverConfig) { c.MaxChunkBytes = sliceBytes - 1 },
		"credit below a chunk":         func(c *kvtransfer.ReceiverConfig) { c.CreditBytes = sliceBytes },
		"negative bounds":              func(c *kvtransfer.ReceiverConfig) { c.MaxReservations = -1 },
		"pages of another layout":      func(c *kvtransfer.ReceiverConfig) { c.Layout.ModelDigest = "another" },
	} {
		c := good
		change(&c)
		if _, err := kvtransfer.NewReceiver(c, kvtransfertest.NewPages(layout, 1)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := kvtransfer.NewReceiver(good, kvtransfertest.NewPages(layout, 1)); err != nil {
		t.Error(err)
	}
	if _, err := kvtransfer.NewSender(kvtransfer.SenderConfig{WorkerID: "p", Epoch: 1, Layout: layout}, kvtransfertest.NewPages(layout, 1)); err == nil {
		t.Error("a sender without dial: no error")
	}
}
