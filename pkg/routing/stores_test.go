package routing_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// store is a block store's record. It takes no requests, so that its capacity is
// blocks and nothing else.
func store(id string) *controlv1.WorkerRecord {
	r := record(id, controlv1.Role_ROLE_KVTRANSFER)
	r.Addresses = []string{"unix:///" + id, id + ":1"}
	r.Capacity = &controlv1.Capacity{Blocks: 1000, BlockTokens: 32}
	return r
}

// holds says what is in a worker's prefix cache, or in a store.
func (b *bench) holds(id string, blocks ...uint64) {
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: id, Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: blocks}})
}

// prompt is a disaggregated request whose blocks are 1, 2, 3 and so on.
func (b *bench) prompt(tokens int) routing.Request {
	r := b.request(dis, tokens)
	r.Hashes = numbered(b.f)
	return r
}

// numbered is the hashes of a prompt, as many as any here is long, for workers as they are.
func numbered(f *routing.Router) map[routing.BlockKey][]kvcache.Hash {
	hashes := make([]kvcache.Hash, 64)
	for i, h := range sequence(64) {
		hashes[i] = kvcache.Hash(h)
	}
	return hashed(f, func(routing.BlockKey) []kvcache.Hash { return hashes })
}

func hashed(f *routing.Router, hash func(routing.BlockKey) []kvcache.Hash) map[routing.BlockKey][]kvcache.Hash {
	out := make(map[routing.BlockKey][]kvcache.Hash)
	for _, key := range f.BlockKeys("fable", routing.Version{}) {
		out[key] = hash(key)
	}
	return out
}

func sequence(n uint64) (hashes []uint64) {
	for i := range n {
		hashes = append(hashes, i+1)
	}
	return hashes
}

func TestStoreIsHinted(t *testing.T) {
	for _, test := range []struct {
		name   string
		stores []*controlv1.WorkerRecord
		before func(*bench)
		tokens int    // of the prompt; 0 is ten blocks and a bit
		want   string // store
		blocks uint32
	}{
		{name: "no store"},
		{name: "more than the worker has", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) { b.holds("s1", sequence(8)...); b.holds("p1", 1, 2) }, want: "s1", blocks: 8},
		{name: "as much as the worker has", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) { b.holds("s1", sequence(8)...); b.holds("p1", sequence(8)...) }},
		{name: "one block more", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) { b.holds("s1", sequence(8)...); b.holds("p1", sequence(7)...) }},
		{name: "one block more, and the last one", stores: []*controlv1.WorkerRecord{store("s1")}, tokens: 8 * 32,
			before: func(b *bench) { b.holds("s1", sequence(8)...); b.holds("p1", sequence(6)...) }},
		{name: "not from the first block on", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) { b.holds("s1", 2, 3, 4, 5, 6) }},
		{name: "the one with most", stores: []*controlv1.WorkerRecord{store("s1"), store("s2"), store("s3")},
			before: func(b *bench) {
				b.holds("s1", sequence(5)...)
				b.holds("s2", sequence(9)...)
				b.holds("s3", sequence(3)...)
			}, want: "s2", blocks: 9},
		{name: "another layout", stores: []*controlv1.WorkerRecord{changed(store("s1"), func(r *controlv1.WorkerRecord) { r.LayoutDigest = 8 })},
			before: func(b *bench) { b.holds("s1", sequence(8)...) }},
		{name: "it drains", stores: []*controlv1.WorkerRecord{changed(store("s1"), func(r *controlv1.WorkerRecord) { r.State = controlv1.WorkerState_WORKER_STATE_DRAINING })},
			before: func(b *bench) { b.holds("s1", sequence(8)...) }},
		{name: "no connection", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) {
				b.holds("s1", sequence(8)...)
				b.do(routing.Disconnected{Worker: routing.Ref{ID: "s1", Epoch: 1}})
			}},
		{name: "an event took them", stores: []*controlv1.WorkerRecord{store("s1")},
			before: func(b *bench) {
				b.holds("s1", sequence(8)...)
				b.do(routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: "s1", Epoch: 1, Sequence: 1}, Removed: []uint64{2}}})
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, append(test.stores, prefill("p1"), decode("d1"))...)
			if test.before != nil {
				test.before(b)
			}
			if test.tokens == 0 {
				test.tokens = 10*32 + 5
			}
			d, refusal, _ := b.arrive(b.prompt(test.tokens))
			if d.Prefill.ID != "p1" || d.Decode.ID != "d1" {
				t.Fatalf("%v, %v", d, refusal)
			}
			if got := d.Source; got.GetWorkerId() != test.want || got.GetBlocks() != test.blocks {
				t.Fatalf("hint %v, want %q with %d blocks", got, test.want, test.blocks)
			}
			if d.Decision.GetSource() != test.want || d.Decision.GetSourceBlocks() != test.blocks {
				t.Errorf("record %v", d.Decision)
			}
			if test.want != "" && (d.Source.GetEpoch() != 1 || !slices.Equal(d.Source.GetAddresses(), []string{"unix:///" + test.want, test.want + ":1"})) {
				t.Errorf("hint %v", d.Source)
			}
			for _, c := range d.Decision.GetCandidates() {
				if strings.HasPrefix(c.GetWorkerId(), "s") {
					t.Errorf("a store is a candidate: %v", c)
				}
			}
		})
	}
}

func changed(r *controlv1.WorkerRecord, change func(*controlv1.WorkerRecord)) *controlv1.WorkerRecord {
	change(r)
	return r
}

// A store says its layout once it has blocks: until then it is no use, and it stays
// the same store.
func TestStoreGetsItsLayoutLater(t *testing.T) {
	empty := changed(store("s1"), func(r *controlv1.WorkerRecord) { r.Layout, r.LayoutDigest, r.ModelDigest, r.Capacity = nil, 0, "", nil })
	p, d := prefill("p1"), decode("d1")
	b := newBench(t, nil, empty, p, d)
	b.holds("s1", sequence(8)...)
	served := func() routing.Dispatch {
		r := b.prompt(10 * 32)
		out, _, _ := b.arrive(r)
		b.do(routing.Ended{ID: r.ID})
		return out
	}
	if got := served(); got.Source != nil {
		t.Fatalf("hint %v", got.Source)
	}
	if actions := b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{store("s1"), p, d}, Live: true}); len(actions) != 0 {
		t.Errorf("a new record gives %v", actions)
	}
	if got := served(); got.Source.GetWorkerId() != "s1" {
		t.Errorf("hint %v", got.Source)
	}
}

// What a store that is gone held is forgotten, and its next incarnation is another
// store.
func TestStoreGone(t *testing.T) {
	p, d := prefill("p1"), decode("d1")
	b := newBench(t, nil, store("s1"), p, d)
	b.holds("s1", sequence(8)...)
	ref := routing.Ref{ID: "s1", Epoch: 1}
	b.do(routing.Disconnected{Worker: ref})
	if actions := b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{p, d}, Live: true}); !slices.Contains(actions, routing.Action(routing.Forget{Worker: ref})) {
		t.Fatalf("%v", actions)
	}
	again := store("s1")
	again.Epoch = 2
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{again, p, d}, Live: true})
	b.do(routing.BlocksListed{Worker: routing.Ref{ID: "s1", Epoch: 2}, Response: &workerv1.ListBlocksResponse{Epoch: 2}})
	b.do(routing.Connected{Worker: routing.Ref{ID: "s1", Epoch: 2}})
	if got, _, _ := b.arrive(b.prompt(10 * 32)); got.Prefill.ID != "p1" || got.Source != nil {
		t.Errorf("%v", got)
	}
}

// A store from which a worker fetched in vain is left alone, for longer each time,
// until something came of it again.
func TestStoreThatGivesNothing(t *testing.T) {
	b := newBench(t, nil, store("s1"), prefill("p1"), decode("d1"))
	b.holds("s1", sequence(8)...)
	ref := routing.Ref{ID: "s1", Epoch: 1}
	hinted := func() bool {
		b.do(load("s1", controlv1.Role_ROLE_KVTRANSFER, nil)) // it is heard of
		r := b.prompt(10 * 32)
		d, _, _ := b.arrive(r)
		b.do(routing.Ended{ID: r.ID})
		return d.Source != nil
	}
	const (
		given  = workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
		stale  = workerv1.FetchVerdict_FETCH_VERDICT_STALE
		failed = workerv1.FetchVerdict_FETCH_VERDICT_FAILED
	)
	after := func(verdict workerv1.FetchVerdict) time.Duration {
		b.do(routing.Fetched{Store: ref, Verdict: verdict})
		begun := b.now
		for !hinted() {
			b.now = b.now.Add(50 * time.Millisecond)
		}
		return b.now.Sub(begun)
	}
	for i, step := range []struct {
		verdict workerv1.FetchVerdict
		wait    time.Duration
	}{
		{failed, 250 * time.Millisecond}, {stale, 0}, {failed, 500 * time.Millisecond}, {0, 0}, {failed, time.Second},
		{given, 0}, {failed, 250 * time.Millisecond},
	} {
		if wait := after(step.verdict); wait != step.wait {
			t.Errorf("%d: left alone for %v, want %v", i, wait, step.wait)
		}
	}
	for range 20 {
		after(failed)
	}
	b.do(routing.Fetched{Store: ref, Verdict: failed})
	b.do(routing.Fetched{Store: ref, Verdict: given})
	if !hinted() {
		t.Error("left alone though it gives")
	}
	for range 20 {
		after(failed)
	}
	if wait := after(failed); wait != 30*time.Second {
		t.Errorf("at the most %v", wait)
	}
	b.do(routing.Fetched{Store: routing.Ref{ID: "s1", Epoch: 9}, Verdict: failed}) // of another incarnation
	b.do(routing.Fetched{Verdict: failed})
	if !hinted() {
		t.Error("left alone for what another did")
	}
}

// What can be fetched makes workers more alike, if fetching is predicted to be
// quicker; and the decode worker's uncached tokens alone decide the mode.
func TestFetchingIsPredicted(t *testing.T) {
	const tokens = 64*32 + 1
	candidate := func(d routing.Dispatch, id string) *controlv1.Candidate {
		for _, c := range d.Decision.GetCandidates() {
			if c.GetWorkerId() == id {
				return c
			}
		}
		t.Fatalf("no candidate %s in %v", id, d.Decision)
		return nil
	}
	mesh := func(bytesPerSecond float64) *bench {
		b := newBench(t, func(c *routing.Config) { c.TransferBytesPerSecond = bytesPerSecond }, store("s1"), prefill("p1"), prefill("p2"), decode("d1"))
		for _, id := range []string{"p1", "p2"} {
			b.do(load(id, controlv1.Role_ROLE_PREFILL, nil)) // a token takes 0.1 ms
		}
		b.holds("s1", sequence(64)...)
		b.holds("p1", sequence(64)...)
		return b
	}
	t.Run("quicker", func(t *testing.T) {
		b := mesh(1e9)
		d, _, _ := b.arrive(b.prompt(tokens))
		p1, p2 := candidate(d, "p1"), candidate(d, "p2")
		if p1.GetFetchTokens() != 0 || p2.GetFetchTokens() != 64*32 || p2.GetCachedTokens() != 0 {
			t.Errorf("p1 %v, p2 %v", p1, p2)
		}
		// 64 blocks are 128 KiB in this layout: moving them takes 0.1 ms.
		if more := p2.GetPrefillMs() - p1.GetPrefillMs(); more <= 0 || more > 2 {
			t.Errorf("fetching takes %v ms longer than having it", more)
		}
	})
	t.Run("slower", func(t *testing.T) {
		b := mesh(1e5) // a second for what computing does in a fifth
		b.do(routing.Disconnected{Worker: routing.Ref{ID: "p1", Epoch: 1}})
		d, _, _ := b.arrive(b.prompt(tokens))
		p2 := candidate(d, "p2")
		if p2.GetFetchTokens() != 0 || p2.GetPrefillMs() < 200 {
			t.Errorf("p2 %v", p2)
		}
		// The worker measures better than this, and is told all the same.
		if d.Prefill.ID != "p2" || d.Source.GetBlocks() != 64 {
			t.Errorf("%v", d)
		}
	})
	t.Run("mode auto", func(t *testing.T) {
		b := newBench(t, nil, store("s1"), prefill("p1"), decode("d1"))
		b.holds("s1", sequence(64)...)
		r := b.prompt(tokens)
		r.Mode = auto
		if d, _, _ := b.arrive(r); d.Decision.GetMode() != dis || d.Source == nil {
			t.Errorf("uncached on the decode worker: %v", d)
		}
		b.do(routing.Ended{ID: r.ID})
		b.holds("d1", sequence(63)...)
		r = b.prompt(tokens)
		r.Mode = auto
		if d, _, _ := b.arrive(r); d.Decision.GetMode() != agg || d.Source != nil {
			t.Errorf("cached on the decode worker: %v", d)
		}
	})
}

// Stores are shown to operators, and what is in flight on them is nothing.
func TestStoresAreListed(t *testing.T) {
	b := newBench(t, nil, store("s1"), prefill("p1"), decode("d1"))
	b.holds("s1", sequence(8)...)
	b.arrive(b.prompt(10 * 32))
	views := b.f.Workers(b.now)
	if len(views) != 3 {
		t.Fatalf("%d workers", len(views))
	}
	last := views[2]
	if last.GetRecord().GetId() != "s1" || !last.GetConnected() || last.GetInFlight() != 0 || !proto.Equal(last.GetRecord(), store("s1")) {
		t.Errorf("%+v", last)
	}
}
