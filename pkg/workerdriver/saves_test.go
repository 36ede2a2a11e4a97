package workerdriver_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// saver is a worker whose saves are kept for the test to end.
func saver(t *testing.T) (m *workerdriver.Member, saves chan scheduler.Save, stops chan scheduler.SaveID) {
	t.Helper()
	saves, stops = make(chan scheduler.Save, 16), make(chan scheduler.SaveID, 16)
	cfg := memberConfig(controlv1.Role_ROLE_PREFILL, newEngine(t, latency.Model{BaseMs: 1}))
	cfg.Save, cfg.StopSave = func(s scheduler.Save) { saves <- s }, func(id scheduler.SaveID) { stops <- id }
	m, err := workerdriver.NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run := make(chan struct{})
	go func() { defer close(run); _ = m.Run(t.Context()) }()
	t.Cleanup(func() { <-run })
	return m, saves, stops
}

// compute runs a prompt whose tokens begin with first.
func compute(t *testing.T, m *workerdriver.Member, first int32, tokens int) {
	t.Helper()
	request := scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(tokens), MaxTokens: 1, Salt: "s"}
	request.Tokens[0] = first
	var r result
	if r.read(t, m.Driver().Submit(request), false); r.finished == nil {
		t.Fatalf("%+v", r)
	}
	synctest.Wait()
}

func TestPrefixesAreSavedUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, saves, stops := saver(t)
		d := m.Driver()
		compute(t, m, 1, 41)
		compute(t, m, 2, 41) // 20 of 40 blocks are cached
		d.LimitSaves(scheduler.SaveLimit{Saves: 1})
		synctest.Wait()
		if len(saves) != 0 {
			t.Fatal("half of the pool is free, and something is saved")
		}
		compute(t, m, 3, 5)
		synctest.Wait()
		if len(saves) != 1 {
			t.Fatalf("%d saves, want 1", len(saves))
		}
		save := <-saves
		if save.Salt != "s" || len(save.Tokens) != 40 || len(save.Blocks) != 10 || save.Tokens[0] != 1 {
			t.Errorf("saved %+v, not the prompt that was used least recently", save)
		}
		if got := d.PoolStats(); got.Held != 10 {
			t.Errorf("%+v: the blocks that are read are not held", got)
		}
		// A request that needs them has them stopped, and gets them.
		s := d.Submit(scheduler.Request{ID: d.Reserve(), Tokens: prompt(130), MaxTokens: 1})
		synctest.Wait()
		if len(stops) != 1 || <-stops != save.ID {
			t.Fatal("nobody asks to stop the save, though its blocks are needed")
		}
		d.SaveDone(scheduler.SaveDone{ID: save.ID, Saved: true})
		var r result
		if r.read(t, s, false); r.finished == nil {
			t.Fatalf("%+v", r)
		}
		d.LimitSaves(scheduler.SaveLimit{})
		if stats := d.PoolStats(); stats.SavedEvictions == 0 || stats.Misuses != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestRestoredTokensAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := saver(t)
		d := m.Driver()
		tokens := prompt(24)
		for _, arrives := range []bool{false, true} {
			id := d.Reserve()
			s := d.Submit(scheduler.Request{ID: id, Kind: scheduler.Restore, Tokens: tokens, Salt: "s"})
			var r result
			if r.read(t, s, true); r.reserved == nil || len(r.reserved.Blocks) != 6 || r.reserved.CachedTokens != 0 {
				t.Fatalf("%+v", r)
			}
			want := scheduler.Failed
			if arrives {
				want = scheduler.Restored
				d.KVArrived(scheduler.KVArrived{ID: id})
				if d.Remaining() != 1 {
					t.Error("the blocks are not held until they were used")
				}
			}
			d.TransferDone(id)
			if r.read(t, s, false); r.finished == nil || r.finished.Reason != want {
				t.Errorf("ended with %+v, want %v", r.finished, want)
			}
			idle(t, m)
			for salt, cached := range map[string]bool{"s": arrives, "other": false} {
				if got := d.CachedBlocks(salt, d.BlockHashes(salt, tokens), tokens); got != 0 != cached || cached && got != 6 {
					t.Errorf("%d blocks are cached under %q, arrived %v", got, salt, arrives)
				}
			}
		}
	})
}

// unreadable is an engine whose pages cannot be read.
type unreadable struct{ *spoiling }

type unreadablePages struct{ engine.Pages }

func (unreadablePages) Read(int, []kvcache.BlockID, []byte) error { return errors.New("it is lost") }

func (e unreadable) Pages() engine.Pages { return unreadablePages{e.spoiling.Pages()} }

func TestFinite(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name   string
		engine func(*spoiling) engine.Engine
		ctx    context.Context
		blocks []kvcache.BlockID
		finite bool
		fails  bool
	}{
		{"they are", func(e *spoiling) engine.Engine { return e }, t.Context(), []kvcache.BlockID{1, 2}, true, false},
		{"one is not", func(e *spoiling) engine.Engine { return e }, t.Context(), []kvcache.BlockID{1, 3}, false, false},
		{"nobody waits", func(e *spoiling) engine.Engine { return e }, over, []kvcache.BlockID{1, 2}, false, true},
		{"they cannot be read", func(e *spoiling) engine.Engine { return unreadable{e} }, t.Context(), []kvcache.BlockID{1, 2}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newSpoiling(t)
			if err := e.Pages().Write(2, []kvcache.BlockID{3}, bytes.Repeat([]byte{0xff}, e.Pages().Layout().SliceBytes)); err != nil {
				t.Fatal(err)
			}
			m, err := workerdriver.NewMember(memberConfig(controlv1.Role_ROLE_PREFILL, c.engine(e)))
			if err != nil {
				t.Fatal(err)
			}
			if finite, err := m.Driver().Finite(c.ctx, c.blocks); finite != c.finite || (err != nil) != c.fails {
				t.Errorf("%v, %v", finite, err)
			}
		})
	}
}
