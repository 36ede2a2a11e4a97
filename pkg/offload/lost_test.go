package offload_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// When a store is gone that has blocks of this worker, they are to be saved anew; once for each.
func TestBlocksOfALostStoreAreSavedAnew(t *testing.T) {
	one, again, other := offload.Store{ID: "s1", Epoch: 1}, offload.Store{ID: "s1", Epoch: 2}, offload.Store{ID: "s2", Epoch: 1}
	ours, theirs := offload.Store{ID: "s1", Epoch: 1, LayoutDigest: 7}, offload.Store{ID: "s1", Epoch: 1, LayoutDigest: 8}
	for name, c := range map[string]struct {
		took  offload.Store
		fails bool
		then  []offload.Store
		anew  bool
	}{
		"restarted":         {took: one, then: []offload.Store{again}, anew: true},
		"replaced":          {took: one, then: []offload.Store{other}, anew: true},
		"gone":              {took: one, anew: true},
		"another one comes": {took: one, then: []offload.Store{one, other}},
		"takes this model":  {took: one, then: []offload.Store{ours}},
		"takes another one": {took: one, then: []offload.Store{theirs}, anew: true},
		"has yet to say so": {took: theirs, then: []offload.Store{theirs}},
		"takes it at last":  {took: theirs, then: []offload.Store{ours}},
		"took nothing":      {took: one, fails: true, then: []offload.Store{again}},
	} {
		t.Run(name, func(t *testing.T) {
			core, now := offload.New(offload.Config{Puts: 2, LayoutDigest: 7}), time.Unix(1000, 0)
			anew := func(event offload.Event) bool {
				return slices.ContainsFunc(core.Handle(now, event), func(a offload.Action) bool {
					limit, is := a.(offload.Limit)
					return is && limit.Anew
				})
			}
			ended := offload.PutEnded{ID: scheduler.SaveID(1)}
			if c.fails {
				ended.Outcome = offload.Outcome{Err: offload.ErrAbandoned}
			}
			for _, event := range []offload.Event{
				offload.Known{Stores: []offload.Store{c.took}}, offload.Save{ID: 1}, ended, offload.Known{Stores: []offload.Store{c.took}},
			} {
				if anew(event) {
					t.Errorf("saves anew at %+v", event)
				}
			}
			if got := anew(offload.Known{Stores: c.then}); got != c.anew {
				t.Errorf("saves anew: %v", got)
			}
			if anew(offload.Known{Stores: c.then}) {
				t.Error("saves anew twice")
			}
		})
	}
}

// A put that ends when its store has restarted or left is none: the store does not have the blocks.
func TestPutOfALostStoreIsNone(t *testing.T) {
	one := offload.Store{ID: "s1", Epoch: 1}
	for name, then := range map[string][]offload.Store{
		"there": {one}, "restarted": {{ID: "s1", Epoch: 2}}, "gone": nil, "takes another model": {{ID: "s1", Epoch: 1, LayoutDigest: 8}},
	} {
		core, now := offload.New(offload.Config{Puts: 2}), time.Unix(1000, 0)
		for _, event := range []offload.Event{offload.Known{Stores: []offload.Store{one}}, offload.Save{ID: 1}, offload.Known{Stores: then}} {
			core.Handle(now, event)
		}
		saved := slices.ContainsFunc(core.Handle(now, offload.PutEnded{ID: 1}), func(a offload.Action) bool {
			s, is := a.(offload.Saved)
			return is && s.Saved
		})
		if saved != (name == "there") {
			t.Errorf("%s: saved: %v", name, saved)
		}
	}
}

// What was fetched from a store that has left meanwhile is to be saved anew: it counts as saved there.
func TestFetchFromALostStoreIsSavedAnew(t *testing.T) {
	one := offload.Store{ID: "s1", Epoch: 1}
	config := offload.Config{Puts: 2, PageBytes: 1, BlockTokens: 4, ChunkTokens: 4, AssumedBandwidth: 1e9}
	for name, then := range map[string][]offload.Store{"there": {one}, "gone": nil} {
		core, now := offload.New(config), time.Unix(1000, 0)
		var last []offload.Action
		for _, event := range []offload.Event{
			offload.Known{Stores: []offload.Store{one}},
			offload.Wanted{
				ID: 1, Fetch: 2, Store: one, Prefix: offload.Prefix{Tokens: make([]int32, 4)}, PromptTokens: 5,
				Hashes: []kvcache.Hash{1}, Model: latency.Model{BaseMs: 1000, PerTokenMs: 1000, Samples: 1},
			},
			offload.Restored{Fetch: 2, Blocks: []kvcache.BlockID{1}},
			offload.Known{Stores: then},
			offload.FetchEnded{Fetch: 2},
		} {
			last = core.Handle(now, event)
		}
		published := slices.IndexFunc(last, func(a offload.Action) bool { _, is := a.(offload.Publish); return is })
		anew := slices.IndexFunc(last, func(a offload.Action) bool { l, is := a.(offload.Limit); return is && l.Anew })
		if published < 0 || name == "gone" && anew < published || name == "there" && anew >= 0 {
			t.Errorf("%s: %+v", name, last)
		}
	}
}
