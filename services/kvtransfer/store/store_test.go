package store_test

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/services/kvtransfer/store"
)

func TestPutThenFetch(t *testing.T) {
	everyNetwork(t, func(t *testing.T, n *network) {
		s := startStore(t, n, config(), 77)
		a, b := startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", layout())
		p := prefix(5, 100)
		sent, err := s.put(a, p, 3)
		if err != nil || sent != 5*layers*sliceBytes {
			t.Fatalf("put: %d bytes, %v", sent, err)
		}
		s.settle()
		s.checkSignals(n, 5)

		// The second worker has the first two blocks itself, at another place.
		blocks := run(20, 5)
		b.compute(p, blocks[:2])
		got, err := b.client.Fetch(t.Context(), s.peer, p, blocks, 2)
		if err != nil || got != 3*layers*sliceBytes {
			t.Fatalf("fetch: %d bytes, %v", got, err)
		}
		b.check(p, blocks)
		s.settle()

		if l := layout(); s.record.record.GetLayoutDigest() != l.Digest() || s.record.record.GetCapacity().GetBlocks() != storeBlocks ||
			s.record.record.GetModelDigest() != l.ModelDigest {
			t.Errorf("record: %v", s.record.record)
		}
	})
}

func TestOnlyWhatLacksIsSent(t *testing.T) {
	n := &network{kind: "tcp"}
	s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
	p := prefix(6, 100)
	first := store.Prefix{Salt: p.Salt, Tokens: p.Tokens[:4]}
	if _, err := s.put(w, first, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.put(w, first, 0); !errors.Is(err, store.ErrHeld) {
		t.Errorf("the same again: %v, want ErrHeld", err)
	}
	if sent, err := s.put(w, p, 0); err != nil || sent != 2*layers*sliceBytes {
		t.Errorf("two more: %d bytes, %v", sent, err)
	}
	other := store.Prefix{Salt: "other", Tokens: p.Tokens}
	if sent, err := s.put(w, other, 0); err != nil || sent != 6*layers*sliceBytes {
		t.Errorf("under another salt: %d bytes, %v", sent, err)
	}
	s.settle()
	s.checkSignals(n, 12)
}

func TestMissing(t *testing.T) {
	n := &network{kind: "tcp"}
	s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
	ask := func(p store.Prefix, want int) {
		t.Helper()
		_, err := w.client.Fetch(t.Context(), s.peer, p, run(30, len(p.Tokens)), 0)
		missing, is := errors.AsType[*store.MissingError](err)
		if !is || missing.Blocks != want {
			t.Errorf("%v, want %d blocks", err, want)
		}
	}
	ask(prefix(3, 100), 0) // it holds nothing at all
	if _, err := s.put(w, prefix(3, 100), 0); err != nil {
		t.Fatal(err)
	}
	ask(prefix(5, 100), 3)
	ask(prefix(3, 101), 0)
	ask(store.Prefix{Salt: "other", Tokens: prefix(3, 100).Tokens}, 0)
	s.settle()
	if stats := w.receiver.Stats(); stats.Reserved+stats.Open+stats.Ending != 0 {
		t.Errorf("the worker still waits: %+v", stats)
	}
}

func TestRestartedStore(t *testing.T) {
	n := &network{kind: "tcp"}
	s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
	if _, err := s.put(w, prefix(3, 100), 0); err != nil {
		t.Fatal(err)
	}
	before := s.peer
	before.Epoch = 76
	if _, err := w.put(before, prefix(3, 200), 0); !errors.Is(err, store.ErrRestarted) {
		t.Errorf("put: %v", err)
	}
	if _, err := w.client.Fetch(t.Context(), before, prefix(3, 100), run(9, 3), 0); !errors.Is(err, store.ErrRestarted) {
		t.Errorf("fetch: %v", err)
	}
	if _, err := w.client.Fetch(t.Context(), s.peer, prefix(3, 100), run(9, 3), 0); err != nil {
		t.Errorf("fetch of this start's: %v", err)
	}
}
