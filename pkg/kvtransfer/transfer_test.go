package kvtransfer_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

func TestMain(m *testing.M) {
	if plan := os.Getenv(mapperPlan); plan != "" {
		os.Exit(runMapper(plan))
	}
	goleak.VerifyTestMain(m)
}

func TestTransferArrives(t *testing.T) {
	for _, test := range []struct {
		name           string
		held, prompt   int
		atOnce         int
		wantSliceBytes uint64
	}{
		{"one block", 0, 1, 1, layers * sliceBytes},
		{"many blocks in one offer", 0, 20, 20, 20 * layers * sliceBytes},
		{"many offers", 0, 20, 3, 20 * layers * sliceBytes},
		{"a held prefix", 7, 20, 4, 13 * layers * sliceBytes},
		{"all held", 5, 5, 1, 0},
		{"nothing at all", 0, 0, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				source, target := kvcache.BlockRange(40, test.prompt), kvcache.BlockRange(3, test.prompt+4)
				slices.Reverse(target)
				ticket, o := g.reserve(target, test.held, test.prompt)
				tr := g.open(ticket)
				sendAll(tr, source, test.held, test.atOnce)
				tr.Commit([]int32{11, 12})
				wait(t, "committed", o.over)
				wait(t, "done", tr.Done())
				if err := tr.Err(); err != nil {
					t.Fatal(err)
				}
				g.checkShut()
				if !o.committed || !slices.Equal(o.sampled, []int32{11, 12}) || o.bytes != test.wantSliceBytes {
					t.Errorf("committed %v, tokens %v, %d bytes", o.committed, o.sampled, o.bytes)
				}
				g.checkPages(source[test.held:], target[test.held:test.prompt])
				g.checkEmpty(target[:test.held])
				g.checkEmpty(target[test.prompt:])
				if s := tr.Stats(); s.Bytes != test.wantSliceBytes {
					t.Errorf("sender's bytes are %d", s.Bytes)
				}
				g.receiver.Cancel(ticket.GetTransferId())
				if s := g.receiver.Stats(); s.Committed != 1 || s.Cancelled != 0 || s.Open+s.Ending != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// EndSessions ends what has no transfers: one that has just begun goes on, in its session, which then
// ends with it.
func TestEndSessions(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		source, target := kvcache.BlockRange(40, 4), kvcache.BlockRange(3, 4)
		ticket, o := g.reserve(target, 0, 4)
		tr := g.open(ticket)
		for range 2 {
			g.sender.EndSessions(t.Context())
		}
		if n := g.receiver.Stats().Streams; n != g.streams {
			t.Errorf("%d streams during a transfer, want %d", n, g.streams)
		}
		sendAll(tr, source, 0, 2)
		tr.Commit([]int32{11})
		wait(t, "done", tr.Done())
		wait(t, "committed", o.over)
		if err := tr.Err(); err != nil || !o.committed {
			t.Fatalf("the transfer ended with %v", err)
		}
		g.checkNoSession()
		again, _ := g.reserve(kvcache.BlockRange(20, 1), 0, 1)
		tr = g.open(again)
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		wait(t, "aborted", tr.Done())
		synctest.Wait()
		if n := g.receiver.Stats().Streams; n != g.streams {
			t.Errorf("%d streams of a session that began later, want %d", n, g.streams)
		}
		g.sender.EndSessions(t.Context())
		g.checkNoSession()
	})
}

// A session that is dialled meanwhile serves those that wait for it, if any still do, and ends.
func TestEndSessionsThatAreDialled(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		overStreams(t, func(t *testing.T, streams option) {
			var dials atomic.Int64
			answer := make(chan struct{})
			g := newRig(t, streams, func(c *rigConfig) {
				dial := c.sender.Dial
				c.sender.Dial = func(address string) (*grpc.ClientConn, error) {
					dials.Add(1)
					<-answer
					return dial(address)
				}
			})
			ticket, _ := g.reserve(kvcache.BlockRange(3, 4), 0, 4)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var opening sync.WaitGroup
			opening.Go(func() {
				tr, err := g.sender.Open(ctx, ticket, "r")
				if (err != nil) != leaves {
					t.Errorf("opened with %v", err)
				}
				if err == nil {
					tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
					wait(t, "aborted", tr.Done())
				}
			})
			synctest.Wait()
			g.sender.EndSessions(t.Context())
			if leaves {
				cancel()
				opening.Wait()
			}
			close(answer)
			opening.Wait()
			g.checkNoSession()
			if n := int(dials.Load()); n != g.streams {
				t.Errorf("%d dials, want %d", n, g.streams)
			}
		})
	}
}

func TestManyTransfersShareASession(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		var tasks sync.WaitGroup
		for i := range 16 {
			tasks.Go(func() {
				source, target := kvcache.BlockRange(i*4, 4), kvcache.BlockRange(60-i*4, 4)
				ticket, o := g.reserve(target, 0, 4)
				tr := g.open(ticket)
				sendAll(tr, source, 0, 2)
				tr.Commit([]int32{int32(i)})
				wait(t, "committed", o.over)
				if !o.committed || o.sampled[0] != int32(i) {
					t.Errorf("transfer %d: %v", i, o.err)
				}
				g.checkPages(source, target)
			})
		}
		tasks.Wait()
		if s := g.receiver.Stats(); s.Streams != g.streams || s.Committed != 16 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*rig, *kvtransferv1.Ticket)
		want    kvtransferv1.RefuseReason
	}{
		{"another secret", func(_ *rig, ticket *kvtransferv1.Ticket) { ticket.Secret++ }, kvtransferv1.RefuseReason_REFUSE_REASON_BAD_SECRET},
		{"another epoch", func(_ *rig, ticket *kvtransferv1.Ticket) { ticket.Epoch++ }, kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH},
		{"another worker", func(_ *rig, ticket *kvtransferv1.Ticket) { ticket.Receiver = "decode-1" }, kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH},
		{"another layout", func(_ *rig, ticket *kvtransferv1.Ticket) { ticket.LayoutDigest++ }, kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT},
		{"another id", func(_ *rig, ticket *kvtransferv1.Ticket) { ticket.TransferId++ }, kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER},
		{"cancelled", func(g *rig, ticket *kvtransferv1.Ticket) { g.receiver.Cancel(ticket.GetTransferId()) }, kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER},
		{"open already", func(g *rig, ticket *kvtransferv1.Ticket) { g.open(ticket) }, kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN},
	} {
		t.Run(test.name, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
				id := ticket.GetTransferId()
				test.prepare(g, ticket)
				_, err := g.sender.Open(t.Context(), ticket, "r")
				if refuseReason(err) != test.want {
					t.Errorf("open gives %v", err)
				}
				g.receiver.Cancel(id)
				g.receiver.Cancel(id)
				wait(t, "drained", o.over)
				if o.err != nil || o.committed {
					t.Errorf("the canceller was told %v", o.err)
				}
			})
		})
	}
}

func TestSenderAborts(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
		tr := g.open(ticket)
		tr.Send(0, 0, kvcache.BlockRange(8, 2))
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED)
		wait(t, "drained", o.over)
		wait(t, "done", tr.Done())
		for _, err := range []error{o.err, tr.Err()} {
			if abortReason(err) != kvtransferv1.AbortReason_ABORT_REASON_FINISHED {
				t.Errorf("ended with %v", err)
			}
		}
		g.checkShut()
		tr.Send(0, 2, kvcache.BlockRange(10, 2)) // after the end: ignored
		tr.Commit(nil)
		if _, err := g.sender.Open(t.Context(), ticket, "r"); refuseReason(err) == 0 {
			t.Errorf("a used ticket gives %v", err)
		}
	})
}

func TestSenderMisuse(t *testing.T) {
	for _, test := range []struct {
		name   string
		misuse func(*kvtransfer.Transfer)
	}{
		{"a slice twice", func(tr *kvtransfer.Transfer) {
			tr.Send(0, 1, kvcache.BlockRange(0, 1))
			tr.Send(0, 1, kvcache.BlockRange(0, 1))
		}},
		{"a held block", func(tr *kvtransfer.Transfer) { tr.Send(0, 0, kvcache.BlockRange(0, 1)) }},
		{"past the end", func(tr *kvtransfer.Transfer) { tr.Send(0, 3, kvcache.BlockRange(0, 2)) }},
		{"no such layer", func(tr *kvtransfer.Transfer) { tr.Send(layers, 1, kvcache.BlockRange(0, 1)) }},
		{"before the start", func(tr *kvtransfer.Transfer) { tr.Send(0, -1, kvcache.BlockRange(0, 1)) }},
		{"pages that cannot be read", func(tr *kvtransfer.Transfer) { tr.Send(0, 1, []kvcache.BlockID{poolBlocks}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				ticket, o := g.reserve(kvcache.BlockRange(0, 4), 1, 4)
				tr := g.open(ticket)
				test.misuse(tr)
				wait(t, "done", tr.Done())
				wait(t, "drained", o.over)
				for _, err := range []error{o.err, tr.Err()} {
					if abortReason(err) != kvtransferv1.AbortReason_ABORT_REASON_FAILED {
						t.Errorf("ended with %v", err)
					}
				}
			})
		})
	}
}

func TestReceiverFails(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(*rig, *kvtransfer.Transfer)
		want kvtransferv1.FailReason
	}{
		{"slices are missing", func(_ *rig, tr *kvtransfer.Transfer) {
			tr.Send(0, 0, kvcache.BlockRange(0, 4))
			tr.Commit(nil)
		}, kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE},
		{"the device fails", func(g *rig, tr *kvtransfer.Transfer) {
			g.to.Fail(errors.New("no such page"))
			tr.Send(0, 0, kvcache.BlockRange(0, 4))
		}, kvtransferv1.FailReason_FAIL_REASON_DEVICE},
	} {
		t.Run(test.name, func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams)
				ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
				tr := g.open(ticket)
				test.do(g, tr)
				wait(t, "done", tr.Done())
				wait(t, "drained", o.over)
				for _, err := range []error{o.err, tr.Err()} {
					if failReason(err) != test.want {
						t.Errorf("ended with %v", err)
					}
				}
			})
		})
	}
}

func TestCancelReachesTheSender(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
		tr := g.open(ticket)
		tr.Send(0, 0, kvcache.BlockRange(8, 2))
		synctest.Wait()
		g.receiver.Cancel(ticket.GetTransferId())
		wait(t, "drained", o.over)
		wait(t, "done", tr.Done())
		if o.err != nil || o.committed {
			t.Errorf("the canceller was told %v", o.err)
		}
		if failReason(tr.Err()) != kvtransferv1.FailReason_FAIL_REASON_CANCELLED {
			t.Errorf("the sender was told %v", tr.Err())
		}
		g.checkShut()
	})
}

// Blocks stay in quarantine while a copy into them runs, whatever else has ended.
func TestDrainedWaitsForCopies(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
		tr := g.open(ticket)
		held := make(chan struct{})
		g.to.Before(func() { <-held })
		tr.Send(0, 0, kvcache.BlockRange(8, 4))
		synctest.Wait()
		g.receiver.Cancel(ticket.GetTransferId())
		g.stop() // ends the connection too
		_ = g.listener.Close()
		synctest.Wait()
		if o.isDrained() {
			t.Fatal("drained while a copy is under way")
		}
		if s := g.receiver.Stats(); s.Ending != 1 {
			t.Errorf("stats %+v", s)
		}
		close(held)
		wait(t, "drained", o.over)
		wait(t, "done", tr.Done())
	})
}

// A transfer that is over is not done while its pages are being read.
func TestDoneWaitsForReads(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
		tr := g.open(ticket)
		held := make(chan struct{})
		g.from.Before(func() { <-held })
		tr.Send(0, 0, kvcache.BlockRange(8, 4))
		synctest.Wait()
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		synctest.Wait()
		select {
		case <-tr.Done():
			t.Error("done while its pages are read")
		default:
		}
		close(held)
		wait(t, "done", tr.Done())
		wait(t, "drained", o.over)
	})
}

func TestOpenGivesUpWithItsContext(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.sender.Open(ctx, ticket, "r"); !errors.Is(err, context.Canceled) {
			t.Errorf("open gives %v", err)
		}
		g.receiver.Cancel(ticket.GetTransferId())
		wait(t, "drained", o.over)
	})
}

func TestLeases(t *testing.T) {
	t.Run("nobody comes", func(t *testing.T) {
		overStreams(t, func(t *testing.T, streams option) {
			g := newRig(t, streams)
			begun := time.Now()
			ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
			<-o.over
			if time.Since(begun) != lease || failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_EXPIRED {
				t.Errorf("after %v: %v", time.Since(begun), o.err)
			}
			if _, err := g.sender.Open(t.Context(), ticket, "r"); refuseReason(err) != kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER {
				t.Errorf("open gives %v", err)
			}
		})
	})
	t.Run("a slow engine keeps it", func(t *testing.T) {
		overStreams(t, func(t *testing.T, streams option) {
			g := newRig(t, streams)
			ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
			tr := g.open(ticket)
			timer := time.NewTimer(11 * lease)
			<-timer.C
			sendAll(tr, kvcache.BlockRange(8, 2), 0, 2)
			tr.Commit(nil)
			wait(t, "committed", o.over)
			if !o.committed {
				t.Errorf("ended with %v", o.err)
			}
		})
	})
	t.Run("renewals alone do not keep it", func(t *testing.T) {
		overStreams(t, func(t *testing.T, streams option) {
			g := newRig(t, streams, func(c *rigConfig) { c.receiver.MaxIdle = 3 * lease })
			ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
			tr, begun := g.open(ticket), time.Now()
			<-time.After(2 * lease)
			tr.Send(0, 0, kvcache.BlockRange(8, 2)) // counts
			wait(t, "drained", o.over)
			if after := time.Since(begun); failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_EXPIRED || after != 5*lease {
				t.Errorf("ended with %v after %v", o.err, after)
			}
			wait(t, "done", tr.Done())
			if failReason(tr.Err()) != kvtransferv1.FailReason_FAIL_REASON_EXPIRED {
				t.Errorf("the sender's end is %v", tr.Err())
			}
		})
	})
}

func TestConnectionsEnd(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		idle, unopened := g.reserve(kvcache.BlockRange(2, 2), 0, 2)
		tr := g.open(ticket)
		g.stop()
		wait(t, "done", tr.Done())
		wait(t, "drained", o.over)
		if !isBroken(tr.Err()) || !isBroken(o.err) {
			t.Errorf("ended with %v and %v", tr.Err(), o.err)
		}
		if _, err := g.sender.Open(t.Context(), idle, "r"); !isBroken(err) {
			t.Errorf("open gives %v", err)
		}
		g.receiver.Cancel(idle.GetTransferId())
		wait(t, "drained", unopened.over)
	})
}

func TestIdleConnectionIsMadeAnew(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		for range 3 {
			ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
			tr := g.open(ticket)
			sendAll(tr, kvcache.BlockRange(8, 2), 0, 2)
			tr.Commit(nil)
			wait(t, "committed", o.over)
			if s := g.receiver.Stats(); s.Streams != g.streams {
				t.Errorf("stats %+v", s)
			}
			timer := time.NewTimer(kvtransfer.DefaultIdleTimeout + time.Second)
			<-timer.C
			if s := g.receiver.Stats(); s.Streams != 0 {
				t.Errorf("stats %+v", s)
			}
		}
	})
}

// The staging buffers of both sides are back when a transfer is over, and were used.
func TestStagingBuffersComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.pages = stagingPages(t) })
		ticket, o := g.reserve(kvcache.BlockRange(3, 20), 0, 20)
		tr := g.open(ticket)
		sendAll(tr, kvcache.BlockRange(40, 20), 0, 20)
		tr.Commit(nil)
		wait(t, "committed", o.over)
		synctest.Wait()
		g.checkPages(kvcache.BlockRange(40, 20), kvcache.BlockRange(3, 20))
		for _, p := range []*kvtransfertest.Pages{g.from, g.to} {
			if idle, copies := p.Staging(); idle != stagingCount || copies == 0 {
				t.Errorf("%d staging buffers are idle after %d copies", idle, copies)
			}
		}
	})
}
