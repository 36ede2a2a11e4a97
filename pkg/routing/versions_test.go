package routing_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// versioned is a worker of model fable in a version, such as "a/1": digest and class.
func versioned(id, version string) *controlv1.WorkerRecord {
	r := record(id, roleOf(id))
	v := versionOf(version)
	r.Model, r.ModelDigest, r.LayoutDigest = "fable", v.Digest, uint64(len(version))<<32|uint64(version[0])<<8|uint64(version[2])
	r.Layout = &kvtransferv1.Layout{ArithmeticClass: v.Class, Layers: 2, BlockTokens: 32, SliceBytes: 1024}
	return r
}

func versionOf(text string) routing.Version {
	digest, class, _ := strings.Cut(text, "/")
	return routing.Version{Digest: digest, Class: class}
}

// byName lets a router know no digest, as one that has read no weights.
func byName(c *routing.Config) { c.Models = []routing.Model{{Name: "fable"}} }

// versions serves n requests and counts the versions that they ran in.
func (b *bench) versions(n int) map[string]int {
	b.t.Helper()
	seen := make(map[string]int)
	for range n {
		r := b.request(agg, 10)
		d, refusal, ok := b.arrive(r)
		if !ok || d.Decision == nil {
			b.t.Fatalf("not sent: %+v", refusal)
		}
		seen[d.Version.Digest+"/"+d.Version.Class]++
		b.do(routing.Ended{ID: r.ID})
	}
	return seen
}

func (b *bench) connect(records ...*controlv1.WorkerRecord) {
	for _, r := range records {
		b.do(routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: r.GetEpoch()}})
	}
}

func (b *bench) list(records ...*controlv1.WorkerRecord) {
	b.do(routing.ViewChanged{Workers: records, Live: true})
}

// A router that has read no weights serves the version that most workers have, in
// whatever order they answer, and no other.
func TestVersionOfMostWorkers(t *testing.T) {
	for _, test := range []struct {
		name    string
		workers []string // id=version, in the order in which they answer
		want    string
	}{
		{"all alike", []string{"d1=a/1", "p1=a/1"}, "a/1"},
		{"other weights answer first", []string{"d3=b/1", "d1=a/1", "d2=a/1", "p1=a/1"}, "a/1"},
		{"other arithmetic answers first", []string{"d3=a/8", "d1=a/1", "d2=a/1"}, "a/1"},
		{"other weights are lower", []string{"d3=a/1", "d1=z/1", "d2=z/1"}, "z/1"},
		{"as many of each: the lowest", []string{"d1=b/1", "d2=a/1"}, "a/1"},
		{"prefill workers count", []string{"d1=a/1", "d2=b/1", "p1=b/1"}, "b/1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, byName)
			var records []*controlv1.WorkerRecord
			for _, w := range test.workers {
				id, version, _ := strings.Cut(w, "=")
				records = append(records, versioned(id, version))
			}
			b.list(records...)
			early := b.request(agg, 10)
			b.do(routing.Arrived{Request: early}) // before anybody has answered
			for i, r := range records {
				b.connect(r)
				d, refusal, answered := answerTo(early.ID, b.last)
				if answered != (i == len(records)-1) || refusal.Reason != "" || answered && d.Version != versionOf(test.want) {
					t.Fatalf("after %d of %d have answered: %v in %v, %+v", i+1, len(records), answered, d.Version, refusal)
				}
			}
			b.do(routing.Ended{ID: early.ID})
			if seen := b.versions(20); seen[test.want] != 20 {
				t.Errorf("served %v", seen)
			}
		})
	}
}

// A worker that is listed and does not answer holds requests up for the grace of a
// router without workers, and only once.
func TestWorkerThatNeverAnswersHoldsUpBriefly(t *testing.T) {
	b := newBench(t, byName)
	d1 := versioned("d1", "a/1")
	b.list(d1, versioned("d2", "b/1"))
	b.connect(d1)
	r := b.request(agg, 10)
	if _, _, answered := b.arrive(r); answered {
		t.Fatal("answered before all had a say")
	}
	if d, _, _ := answerTo(r.ID, b.pass(time.Second)); d.Version != versionOf("a/1") {
		t.Fatalf("not sent within the grace: %v", d.Version)
	}
	b.do(routing.Ended{ID: r.ID})
	b.versions(1)
}

// What was served stays: no majority of others changes it, whether its own workers are
// there, do not answer, or are gone.
func TestVersionStays(t *testing.T) {
	for _, fixed := range []string{"by a request", "by time"} {
		t.Run(fixed, func(t *testing.T) {
			d1, p1 := versioned("d1", "b/1"), versioned("p1", "b/1")
			others := []*controlv1.WorkerRecord{versioned("d2", "a/1"), versioned("d3", "a/1"), versioned("d4", "a/1"), versioned("p2", "a/1")}
			b := newBench(t, byName, d1, p1)
			if fixed == "by a request" {
				b.versions(1)
			} else {
				b.pass(6 * time.Second)
			}
			b.list(append(others, d1, p1)...)
			b.connect(others...)
			if seen := b.versions(20); seen["b/1"] != 20 {
				t.Errorf("with a majority of others: %v", seen)
			}
			if n := b.f.ForeignWorkers(); n != 4 {
				t.Errorf("%d are foreign", n)
			}
			for _, v := range b.f.Workers(b.now) {
				if foreign := v.GetRecord().GetModelDigest() == "a"; foreign != (v.GetExcluded() != "") {
					t.Errorf("%s: excluded %q", v.GetRecord().GetId(), v.GetExcluded())
				}
			}
			b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
			r := b.request(agg, 10)
			if d, _, answered := b.arrive(r); answered {
				t.Errorf("while its worker is away: %v", d.Version)
			}
			b.connect(d1)
			if d, _, _ := answerTo(r.ID, b.last); d.Version != versionOf("b/1") {
				t.Errorf("when it is back: %v", d.Version)
			}
			b.do(routing.Ended{ID: r.ID})
			b.list(others...)
			b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
			b.do(routing.Disconnected{Worker: routing.Ref{ID: "p1", Epoch: 1}})
			r = b.request(agg, 10)
			if d, refusal, answered := b.arrive(r); answered {
				t.Errorf("after the last of it is gone: %v, %+v", d.Version, refusal)
			}
			if _, refusal, _ := answerTo(r.ID, b.pass(2*time.Second)); refusal.Reason != api.ReasonNoWorkers || !strings.Contains(refusal.Message, "tandem policy") {
				t.Errorf("after the last of it is gone: %+v", refusal)
			}
			b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "a", ArithmeticClass: "1"}}}})
			if seen := b.versions(5); seen["a/1"] != 5 {
				t.Errorf("after the policy says so: %v", seen)
			}
		})
	}
}

// Each change is said once.
func TestForeignWorkersAreSaid(t *testing.T) {
	d1, d2 := versioned("d1", "a/1"), versioned("d2", "b/1")
	d3 := versioned("d3", "a/1")
	b := newBench(t, byName, d1, d3)
	var said []string
	note := func(actions []routing.Action) {
		for _, action := range actions {
			switch a := action.(type) {
			case routing.Pinned:
				said = append(said, fmt.Sprintf("pinned %s", a.Version.Digest))
			case routing.Foreign:
				said = append(said, fmt.Sprintf("%s of %s excluded %v for %s", a.Worker.ID, a.Version.Digest, a.Excluded, routing.VersionsText(a.Served)))
			}
		}
	}
	note(b.pass(10 * time.Second))
	note(b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{d1, d2, d3}, Live: true}))
	note(b.do(routing.Connected{Worker: routing.Ref{ID: "d2", Epoch: 1}}))
	note(b.pass(10 * time.Second))
	note(b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "a"}, {Model: "fable", ModelDigest: "b", ArithmeticClass: "1"}}}}))
	note(b.pass(10 * time.Second))
	want := []string{"pinned a", "d2 of b excluded true for a (1)", "pinned a", "d2 of b excluded false for a (1), b (1)"}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// Operators list versions: each request runs in one of them, by weight, and stays
// there; of one whose workers are all gone, requests go to the other.
func TestVersionsOfThePolicy(t *testing.T) {
	workers := []*controlv1.WorkerRecord{versioned("d1", "a/1"), versioned("d2", "a/1"), versioned("d3", "b/1"), versioned("d4", "b/8"), versioned("p1", "a/1"), versioned("p2", "b/1")}
	b := newBench(t, byName, workers...)
	set := func(versions ...*controlv1.ModelVersion) {
		b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: versions}})
	}
	a, other := &controlv1.ModelVersion{Model: "fable", ModelDigest: "a"}, &controlv1.ModelVersion{Model: "fable", ModelDigest: "b", ArithmeticClass: "1", Weight: proto.Uint32(3)}
	set(a, other, &controlv1.ModelVersion{Model: "another", ModelDigest: "c"})
	if seen := b.versions(400); seen["a/1"] < 60 || seen["a/1"] > 140 || seen["a/1"]+seen["b/1"] != 400 {
		t.Errorf("of 400 by 1 to 3: %v", seen)
	}
	set(other)
	if seen := b.versions(20); seen["b/1"] != 20 {
		t.Errorf("b only: %v", seen)
	}
	// One that began with a goes on there, though a is not served any more.
	again := b.request(agg, 10)
	again.Attempt, again.Version = 1, versionOf("a/1")
	if d, _, _ := b.arrive(again); d.Version != versionOf("a/1") {
		t.Errorf("began with a, went on with %v", d.Version)
	}
	b.do(routing.Ended{ID: again.ID})
	set(a, other)
	for _, id := range []string{"d1", "d2"} {
		b.do(routing.Disconnected{Worker: routing.Ref{ID: id, Epoch: 1}})
	}
	if seen := b.versions(20); seen["b/1"] != 20 {
		t.Errorf("without a worker of a: %v", seen)
	}
	// A request of a waits for one of a, and is refused.
	again.ID = "again"
	if _, _, answered := b.arrive(again); answered {
		t.Error("answered at once")
	}
	if _, refusal, _ := answerTo(again.ID, b.pass(2*time.Second)); refusal.Reason != api.ReasonWorkerLost {
		t.Errorf("%+v", refusal)
	}
	set()
	if seen := b.versions(10); seen["b/1"] != 10 {
		t.Errorf("without a policy: %v", seen) // of those that answer, most
	}
}

// What is told of a request that no version serves is of its own version.
func TestRefusedForItsOwnVersion(t *testing.T) {
	b := newBench(t, byName, versioned("d1", "a/1"), versioned("d2", "b/1"), versioned("p1", "a/1"))
	b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{
		{Model: "fable", ModelDigest: "a", ArithmeticClass: "1"}, {Model: "fable", ModelDigest: "b", ArithmeticClass: "1", Weight: proto.Uint32(0)},
	}}})
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
	r := b.request(dis, 100)
	if _, refusal, answered := b.arrive(r); answered {
		t.Fatalf("answered at once: %+v", refusal)
	}
	if waiting := b.f.Queued(b.now)["fable"]; len(waiting) != 1 || waiting[0].GetPool() != controlv1.Role_ROLE_DECODE {
		t.Errorf("what waits for decode workers is counted as %v", waiting)
	}
	for _, action := range b.pass(2 * time.Second) {
		if refuse, is := action.(routing.Refuse); is {
			if why := refuse.Decision.GetReason(); !strings.HasPrefix(why, "no worker: ") || !strings.Contains(why, "d1: no connection") {
				t.Errorf("refused for %q", why)
			}
			return
		}
	}
	t.Error("not refused")
}

// A request whose version has no worker is refused at once if the other one is too slow for it, unless a
// worker of its own may come back.
func TestRefusedForTheOtherVersion(t *testing.T) {
	for _, returns := range []bool{false, true} {
		workers := []*controlv1.WorkerRecord{versioned("d2", "b/1")}
		if returns {
			workers = append(workers, versioned("d1", "a/1"))
		}
		b := newBench(t, byName, workers...)
		b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{
			{Model: "fable", ModelDigest: "a", ArithmeticClass: "1"}, {Model: "fable", ModelDigest: "b", ArithmeticClass: "1", Weight: proto.Uint32(0)},
		}}})
		if returns {
			b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
		}
		b.do(load("d2", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.WaitingSequences, r.WaitingTokens = 1, 100_000 }))
		r := b.request(agg, 100)
		r.TTFT = 100 * time.Millisecond
		if _, refusal, answered := b.arrive(r); answered == returns || !returns && refusal.Reason != api.ReasonSLOUnattainable {
			t.Errorf("a worker may come back: %v; answered %v: %+v", returns, answered, refusal)
		}
		if !returns {
			continue
		}
		if got, refusal, _ := answerTo(r.ID, b.do(routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 1}})); got.Decode.ID != "d1" {
			t.Errorf("when it is back: %+v, %+v", got, refusal)
		}
	}
}

// A router that knows the digest serves that one, in the class that most have.
func TestVersionOfARouterThatKnowsTheDigest(t *testing.T) {
	b := newBench(t, func(c *routing.Config) { c.Models = []routing.Model{{Name: "fable", Digest: "a"}} },
		versioned("d1", "b/1"), versioned("d2", "b/1"), versioned("d3", "a/8"), versioned("d4", "a/1"), versioned("p4", "a/1"))
	if seen := b.versions(10); seen["a/1"] != 10 {
		t.Errorf("served %v", seen)
	}
}

// Block stores have no version of their own: they are never left out for it.
func TestStoresAreNotForeign(t *testing.T) {
	s := versioned("s1", "b/1")
	b := newBench(t, byName, versioned("d1", "a/1"), s)
	b.versions(1)
	for _, v := range b.f.Workers(b.now) {
		if v.GetExcluded() != "" {
			t.Errorf("%s: %q", v.GetRecord().GetId(), v.GetExcluded())
		}
	}
	if n := b.f.ForeignWorkers(); n != 0 {
		t.Errorf("%d are foreign", n)
	}
}

// Explain says of a foreign worker that it is one, and it is as if it were not there
// in every other respect.
func TestForeignWorkerIsExplained(t *testing.T) {
	foreign := versioned("d2", "b/1")
	foreign.Capacity.Blocks = 1 // too small for anything
	b := newBench(t, byName, versioned("d1", "a/1"), foreign, versioned("p1", "a/1"))
	d, _, _ := b.arrive(b.request(agg, 100))
	why := ""
	for _, c := range d.Decision.GetCandidates() {
		if c.GetWorkerId() == "d2" {
			why = c.GetExcluded()
		}
	}
	if !strings.Contains(why, "its weights or arithmetic are b (1), but model fable is served with a (1)") {
		t.Errorf("excluded %q", why)
	}
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
	r := b.request(agg, 100)
	if _, refusal, answered := b.arrive(r); answered {
		t.Errorf("answered at once: %+v", refusal)
	}
	if _, refusal, _ := answerTo(r.ID, b.pass(2*time.Second)); refusal.Reason != api.ReasonNoWorkers || !strings.Contains(refusal.Message, "d1: no connection") {
		t.Errorf("%+v", refusal)
	}
}

// Whatever workers come and go, a request is never sent to two versions, nor to one
// that is not served, and what is served changes only by policy or when nobody of it
// is left.
func TestVersionsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config()
		byName(&c)
		f := routing.New(c, rand.New(rand.NewPCG(1, 2)))
		now := time.Unix(1000, 0)
		records, connected := map[string]*controlv1.WorkerRecord{}, map[string]bool{}
		var policy *controlv1.Policy
		var served routing.Version // of the last request without a policy
		ran := map[string]routing.Version{}
		open := map[string]bool{}
		known := map[routing.Ref]*controlv1.WorkerRecord{} // asked to connect to and not forgotten
		count, epoch := 0, uint64(0)
		do := func(event routing.Event) {
			for _, action := range f.Handle(now, event) {
				switch a := action.(type) {
				case routing.Connect:
					known[a.Worker] = a.Record
				case routing.Forget:
					delete(known, a.Worker)
				case routing.Refuse:
					delete(open, a.ID)
				case routing.Dispatch:
					for _, ref := range []routing.Ref{a.Decode, a.Prefill} {
						if r := known[ref]; ref != (routing.Ref{}) && (r == nil || !connected[ref.ID] || a.Version != routing.Version{Digest: r.GetModelDigest(), Class: r.GetLayout().GetArithmeticClass()}) {
							t.Fatalf("%s in %v goes to %v", a.ID, a.Version, r)
						}
					}
					before, again := ran[a.ID]
					if again && before != a.Version {
						t.Fatalf("%s ran in %v and then in %v", a.ID, before, a.Version)
					}
					ran[a.ID] = a.Version
					listed := len(policy.GetVersions()) > 0
					matches := func(v *controlv1.ModelVersion) bool {
						return v.GetModelDigest() == a.Version.Digest && (v.GetArithmeticClass() == "" || v.GetArithmeticClass() == a.Version.Class)
					}
					switch {
					case again:
					case listed && !slices.ContainsFunc(policy.GetVersions(), matches):
						t.Fatalf("%s runs in %v, policy %v", a.ID, a.Version, policy)
					case !listed && served != (routing.Version{}) && served != a.Version:
						t.Fatalf("%v is served instead of %v", a.Version, served)
					}
					if !listed && !again {
						served = a.Version
					}
				}
			}
		}
		view := func() {
			var e routing.ViewChanged
			for _, id := range slices.Sorted(func(yield func(string) bool) {
				for id := range records {
					if !yield(id) {
						return
					}
				}
			}) {
				e.Workers = append(e.Workers, records[id])
			}
			e.Live = true
			for ref := range known {
				if r := records[ref.ID]; r.GetEpoch() == ref.Epoch {
					known[ref] = r
				}
			}
			do(e)
		}
		workers := []string{"d1", "d2", "d3", "p1", "p2", "p3"}
		some := func(t *rapid.T) (routing.Ref, bool) {
			id := rapid.SampledFrom(workers).Draw(t, "id")
			ref := routing.Ref{ID: id, Epoch: records[id].GetEpoch()}
			return ref, known[ref] != nil
		}
		for _, id := range workers[:rapid.IntRange(0, len(workers)).Draw(t, "at first")] {
			epoch++
			records[id] = versioned(id, rapid.SampledFrom([]string{"a/1", "b/1"}).Draw(t, "version"))
			records[id].Epoch = epoch
			view()
			connected[id] = true
			do(routing.Connected{Worker: routing.Ref{ID: id, Epoch: epoch}})
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				id := rapid.SampledFrom(workers).Draw(t, "id")
				epoch++
				r := versioned(id, rapid.SampledFrom([]string{"a/1", "a/1", "b/1", "a/8"}).Draw(t, "version"))
				r.Epoch = epoch
				records[id] = r
				delete(connected, id)
				for _, ref := range slices.SortedFunc(maps.Keys(known), func(a, b routing.Ref) int { return cmp.Compare(a.Epoch, b.Epoch) }) {
					if ref.ID == id {
						do(routing.Disconnected{Worker: ref})
					}
				}
				view()
				if ref := (routing.Ref{ID: id, Epoch: epoch}); rapid.Bool().Draw(t, "answers") {
					connected[id] = true
					do(routing.Connected{Worker: ref})
				}
			},
			"leave": func(t *rapid.T) {
				id := rapid.SampledFrom(workers).Draw(t, "id")
				delete(records, id)
				delete(connected, id)
				for ref := range known {
					if ref.ID == id {
						do(routing.Disconnected{Worker: ref})
					}
				}
				view()
			},
			"drain": func(t *rapid.T) {
				if ref, ok := some(t); ok {
					r := proto.CloneOf(records[ref.ID])
					r.State = controlv1.WorkerState_WORKER_STATE_DRAINING
					records[ref.ID] = r
					view()
				}
			},
			"connect": func(t *rapid.T) {
				if ref, ok := some(t); ok {
					connected[ref.ID] = true
					do(routing.Connected{Worker: ref})
				}
			},
			"disconnect": func(t *rapid.T) {
				if ref, ok := some(t); ok {
					delete(connected, ref.ID)
					do(routing.Disconnected{Worker: ref})
				}
			},
			"policy": func(t *rapid.T) {
				policy = nil
				for _, v := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a/1", "b/1", "a/8", "b/"}), 0, 2, rapid.ID).Draw(t, "versions") {
					if policy == nil {
						policy = &controlv1.Policy{}
					}
					policy.Versions = append(policy.Versions, &controlv1.ModelVersion{Model: "fable", ModelDigest: versionOf(v).Digest, ArithmeticClass: versionOf(v).Class})
				}
				served = routing.Version{}
				do(routing.PolicyChanged{Policy: policy})
			},
			"arrive": func(t *rapid.T) {
				count++
				id := fmt.Sprint("r", count)
				open[id] = true
				do(routing.Arrived{Request: routing.Request{ID: id, Tenant: "t", Model: "fable", Mode: rapid.SampledFrom(modes).Draw(t, "mode"), Arrived: now, Tokens: 100, MaxNew: 10}})
			},
			"again": func(t *rapid.T) {
				for i := range count {
					id := fmt.Sprint("r", i+1)
					if v, sent := ran[id]; sent && open[id] {
						do(routing.Ended{ID: id})
						do(routing.Arrived{Request: routing.Request{ID: id, Attempt: 1, Version: v, Tenant: "t", Model: "fable", Mode: auto, Arrived: now, Tokens: 100, MaxNew: 10}})
						return
					}
				}
			},
			"end": func(t *rapid.T) {
				for i := range count {
					if id := fmt.Sprint("r", i+1); open[id] && ran[id] != (routing.Version{}) {
						do(routing.Cancelled{ID: id})
						do(routing.Ended{ID: id})
						delete(open, id)
						return
					}
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
				do(routing.Tick{})
			},
		})
	})
}

var modes = []inferencev1.Mode{auto, dis, agg}
