package kvtransfer_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
)

// A store holds blocks of one model, until they were long not used.
func TestAnotherLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s := startStore(t, n, config(), 77)
		other := layout()
		other.ModelDigest = "another"
		a, b := startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", other)
		if _, err := s.put(a, prefix(4, 100), 0); err != nil {
			t.Fatal(err)
		}
		refused := func(err error) {
			t.Helper()
			if _, is := errors.AsType[*storeclient.LayoutError](err); !is || status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%v, want a LayoutError", err)
			}
		}
		_, err := s.put(b, prefix(3, 100), 0)
		refused(err)
		_, err = b.client.Fetch(t.Context(), s.peer, prefix(4, 100), kvcache.BlockRange(9, 4), 0)
		refused(err)

		// Use counts, and what is under way keeps the cache where it is.
		time.Sleep(9 * time.Minute)
		if _, err := a.client.Fetch(t.Context(), s.peer, prefix(4, 100), kvcache.BlockRange(9, 4), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		_, err = s.put(b, prefix(3, 100), 0)
		refused(err)
		time.Sleep(2 * time.Minute)
		if _, err := s.put(b, prefix(3, 100), 0); err != nil {
			t.Fatalf("after ten minutes without use: %v", err)
		}
		s.checkSignals(n, 3)
		if s.record.record.GetLayoutDigest() != other.Digest() {
			t.Errorf("record: %v", s.record.record)
		}
		_, err = s.put(a, prefix(4, 100), 0)
		refused(err)

		// One of which nothing fits gets nothing, and takes nothing from anybody.
		time.Sleep(11 * time.Minute)
		large := kvtransfertest.Layout(2*layers*storeBlocks, sliceBytes)
		_, err = s.put(startWorker(t, n, "prefill-3", large), prefix(1, 100), 0)
		tooSmall(t, err)
		s.checkSignals(n, 3)
		if _, err := b.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0); err != nil {
			t.Error(err)
		}
		b.check(prefix(3, 100), kvcache.BlockRange(9, 3))
		s.awaitIdle()
	})
}

// What never came keeps nobody off.
func TestEmptyCacheGivesWayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s := startStore(t, n, config(), 77)
		other := layout()
		other.ModelDigest = "another"
		w := startWorker(t, n, "prefill-1", layout())
		offers, _ := s.raw(n)
		if _, err := offers.Offer(t.Context(), &kvtransferv1.OfferRequest{
			StoreEpoch: 77, Layout: other.Proto(), Prefix: &kvtransferv1.Prefix{LayoutDigest: other.Digest(), TokenIds: []uint32{1}},
		}); err != nil {
			t.Fatal(err)
		}
		_, err := s.put(w, prefix(3, 100), 0)
		if _, is := errors.AsType[*storeclient.LayoutError](err); !is {
			t.Errorf("while the other's may still come: %v, want a LayoutError", err)
		}
		time.Sleep(lease + time.Second)
		if _, err := s.put(w, prefix(3, 100), 0); err != nil {
			t.Errorf("after its lease: %v", err)
		}
	})
}

// tooSmall checks what an offer of blocks is answered of which none fits.
func tooSmall(t *testing.T, err error) {
	t.Helper()
	if refused, is := errors.AsType[*storeclient.LayoutError](err); !is || rpc.Reason(refused.Err) != api.ReasonStoreTooSmall || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v, want a LayoutError that says %s", err, api.ReasonStoreTooSmall)
	}
}

// A store that is too small for a model says so to who offers, to its operator and in
// its metrics, and not too often.
func TestTooSmallIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		cfg := config()
		cfg.Memory = bytesize.Size(blockstore.BlockBytes(layout()) - 1)
		var log bytes.Buffer
		s := startStoreWith(t, n, cfg, 77, slog.New(slog.NewTextHandler(&log, nil)))
		w := startWorker(t, n, "prefill-1", layout())
		for _, step := range []struct {
			after time.Duration
			lines int
		}{{0, 1}, {time.Second, 1}, {58 * time.Second, 1}, {time.Second, 2}} {
			time.Sleep(step.after)
			_, err := s.put(w, prefix(1, 100), 0)
			tooSmall(t, err)
			if got := strings.Count(log.String(), "level=ERROR"); got != step.lines {
				t.Errorf("%d lines in the log, want %d:\n%s", got, step.lines, log.String())
			}
		}
		if got := s.offers("store_too_small"); got != 4 {
			t.Errorf("%v offers are counted, want 4", got)
		}
		if got := s.offers("store_full"); got != 0 {
			t.Errorf("%v offers are counted as ones that may come again", got)
		}
		s.awaitIdle()
	})
}

func TestLeastMemory(t *testing.T) {
	cfg := config()
	cfg.Memory = blockstore.LeastBlockBytes
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	cfg.Memory--
	if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), "store-memory: ") || !strings.Contains(err.Error(), strconv.Itoa(blockstore.LeastBlockBytes)) {
		t.Errorf("%v, want the least", err)
	}
	if small := kvtransfertest.Layout(1, 1); blockstore.BlockBytes(small) != blockstore.LeastBlockBytes {
		t.Errorf("the smallest block takes %d bytes, the least memory is %d", blockstore.BlockBytes(small), blockstore.LeastBlockBytes)
	}
}

func TestBlockThatDoesNotFit(t *testing.T) {
	n := &network{kind: "tcp"}
	cfg := config()
	cfg.Memory = layers * sliceBytes
	s, w := startStore(t, n, cfg, 77), startWorker(t, n, "prefill-1", layout())
	_, err := s.put(w, prefix(1, 100), 0)
	tooSmall(t, err)
	// A smaller one does, in the same store.
	small := kvtransfertest.Layout(1, sliceBytes)
	offers, _ := s.raw(n)
	if _, err := offers.Offer(t.Context(), &kvtransferv1.OfferRequest{
		StoreEpoch: 77, Layout: small.Proto(), Prefix: &kvtransferv1.Prefix{LayoutDigest: small.Digest(), TokenIds: []uint32{1}},
	}); err != nil {
		t.Errorf("a smaller one: %v", err)
	}
}
