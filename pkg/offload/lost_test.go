package offload_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// When a store is gone that has blocks of this worker, they are to be saved anew; once for each.
func TestBlocksOfALostStoreAreSavedAnew(t *testing.T) {
	one, again, other := offload.Store{ID: "s1", Epoch: 1}, offload.Store{ID: "s1", Epoch: 2}, offload.Store{ID: "s2", Epoch: 1}
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
		"took nothing":      {took: one, fails: true, then: []offload.Store{again}},
	} {
		t.Run(name, func(t *testing.T) {
			core, now := offload.New(offload.Config{Puts: 2}), time.Unix(1000, 0)
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
	for name, then := range map[string][]offload.Store{"there": {one}, "restarted": {{ID: "s1", Epoch: 2}}, "gone": nil} {
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
