package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// kvEvent is a KV event of the first incarnation of a worker.
func kvEvent(id string, sequence uint64, stored ...uint64) routing.BlocksChanged {
	return routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: id, Epoch: 1, Sequence: sequence}, Stored: stored}}
}

func asksFor(actions []routing.Action) (ids []string) {
	for _, action := range actions {
		if a, is := action.(routing.ListBlocks); is {
			ids = append(ids, a.Worker.ID)
		}
	}
	return ids
}

// cachedAt is how many tokens of the numbered prompt a decision takes a decode worker to hold.
func (b *bench) cachedAt(id string) int {
	r := b.prompt(10*32 + 1)
	r.Mode = agg
	d, _, _ := b.arrive(r)
	b.do(routing.Ended{ID: r.ID})
	for _, c := range d.Decision.GetCandidates() {
		if c.GetWorkerId() == id {
			return int(c.GetCachedTokens())
		}
	}
	return -1
}

// However many workers are to be asked for their prefix caches, a few are at a time, and all in
// the end: also where some do not answer.
func TestSnapshotsComeAFewAtATime(t *testing.T) {
	const workers = 100
	var records []*controlv1.WorkerRecord
	for i := range workers {
		records = append(records, decode(fmt.Sprintf("d%02d", i)))
	}
	b := newBench(t, nil)
	b.do(routing.ViewChanged{Workers: records, Live: true})
	open, asked, most := []string{}, map[string]bool{}, 0
	note := func(actions []routing.Action) {
		for _, id := range asksFor(actions) {
			open, asked[id] = append(open, id), true
		}
		most = max(most, len(open))
	}
	for _, r := range records {
		note(b.do(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}}))
	}
	for n := 0; len(open) > 0; n++ {
		id := open[0]
		open = open[1:]
		ref := routing.Ref{ID: id, Epoch: 1}
		switch n % 3 {
		case 0:
			note(b.do(routing.BlocksListed{Worker: ref}))
		case 1:
			note(b.do(routing.Disconnected{Worker: ref}))
			note(b.do(routing.BlocksListed{Worker: ref}))
		default:
			for _, part := range routing.Listed(ref, &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: sequence(5000)}) {
				note(b.do(part))
			}
		}
	}
	if len(asked) != workers || most > 8 {
		t.Errorf("%d of %d were asked, %d at a time", len(asked), workers, most)
	}
}

// Routers that miss the same event do not all ask at the same time.
func TestGapsAreFollowedBySomeTime(t *testing.T) {
	waits := map[time.Duration]bool{}
	for seed := range uint64(20) {
		f, now := routing.New(config(), rand.New(rand.NewPCG(seed, 2))), time.Unix(1000, 0)
		f.Handle(now, routing.ViewChanged{Workers: []*controlv1.WorkerRecord{decode("d1")}, Live: true})
		ref := routing.Ref{ID: "d1", Epoch: 1}
		f.Handle(now, routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1}})
		f.Handle(now, routing.Connected{Worker: ref})
		f.Handle(now, kvEvent("d1", 7))
		at, due := f.Next()
		wait := at.Sub(now)
		if !due || wait < 0 || wait > 100*time.Millisecond || len(asksFor(f.Handle(at, routing.Tick{}))) != 1 {
			t.Fatalf("asks after %v, %v", wait, due)
		}
		waits[wait] = true
	}
	if len(waits) < 10 {
		t.Errorf("after %v", waits)
	}
}

// After a gap what was known counts until the snapshot is whole, but less and less.
func TestTheOldCountsUntilTheSnapshotIsWhole(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	ref := routing.Ref{ID: "d1", Epoch: 1}
	all := sequence(8)
	b.holds("d1", all...)
	b.do(kvEvent("d1", 2, 9, 10))
	heard := func() { b.do(load("d1", controlv1.Role_ROLE_DECODE, nil)) }
	heard()
	if n := b.cachedAt("d1"); n != 10*32 {
		t.Fatalf("%d tokens right after a gap", n)
	}
	for range 40 {
		b.pass(time.Second)
		heard()
	}
	if n := b.cachedAt("d1"); n == 0 || n > 5*32 {
		t.Errorf("%d tokens long after a gap", n)
	}
	parts := routing.Listed(ref, &workerv1.ListBlocksResponse{Epoch: 1, Sequence: 2, BlockHashes: sequence(5000)})
	if len(parts) < 2 {
		t.Fatalf("%d parts", len(parts))
	}
	for i, part := range parts {
		if n := b.cachedAt("d1"); n > 5*32 {
			t.Errorf("%d tokens before part %d", n, i)
		}
		b.do(part)
	}
	if n := b.cachedAt("d1"); n != 10*32 {
		t.Errorf("%d tokens after the snapshot", n)
	}
}

// What a worker holds of which nothing is heard is believed less and less. It is asked from time
// to time, over its connection.
func TestWithoutSignals(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	answer := func() {
		b.do(routing.BlocksListed{Worker: routing.Ref{ID: "d1", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: sequence(10)}})
	}
	answer()
	b.pass(2 * time.Second)
	if n := b.cachedAt("d1"); n != 10*32 {
		t.Errorf("%d tokens a moment later", n)
	}
	asked, least := 0, 10*32
	for range 300 {
		if len(asksFor(b.pass(time.Second))) > 0 {
			asked++
			answer()
		}
		least = min(least, b.cachedAt("d1"))
	}
	if asked < 5 || asked > 10 || least > 8*32 || least == 0 {
		t.Errorf("asked %d times in five minutes, %d tokens were believed at the least", asked, least)
	}
	b.pass(time.Hour)
	if n := b.cachedAt("d1"); n != 0 {
		t.Errorf("%d tokens an hour after the last answer", n)
	}
}

// A worker that takes the place of an earlier start of it is asked, whatever it said before.
func TestSuccessorIsAsked(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	b.holds("d1", sequence(3)...)
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{changed(decode("d1"), func(r *controlv1.WorkerRecord) { r.Epoch = 2 })}, Live: true})
	ref := routing.Ref{ID: "d1", Epoch: 2}
	list := routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 2, BlockHashes: sequence(10)}}
	b.do(list)
	if asked := asksFor(b.do(routing.Connected{Worker: ref})); len(asked) != 1 {
		t.Fatalf("asks for %v", asked)
	}
	b.do(list)
	if n := b.cachedAt("d1"); n != 10*32 {
		t.Errorf("%d tokens", n)
	}
}

// The parts of a list are all of it, in order, the first blocks last.
func TestListedIsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 10_000).Draw(t, "blocks")
		response := &workerv1.ListBlocksResponse{Epoch: 3, Sequence: 4, BlockHashes: sequence(n)}
		var got []uint64
		parts := routing.Listed(routing.Ref{ID: "w", Epoch: 3}, response)
		for i, p := range parts {
			if p.Came != len(got) || p.More != (i < len(parts)-1) || p.Response.GetEpoch() != 3 || p.Response.GetSequence() != 4 {
				t.Fatalf("part %d: %d came, more %v", i, p.Came, p.More)
			}
			got = append(slices.Clone(p.Response.GetBlockHashes()), got...)
			if len(p.Response.GetBlockHashes()) > 1024 {
				t.Fatalf("part %d is of %d blocks", i, len(p.Response.GetBlockHashes()))
			}
		}
		if !slices.Equal(got, response.GetBlockHashes()) {
			t.Fatalf("%d of %d blocks", len(got), n)
		}
	})
}
