package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// serving is the record of a router that serves a version.
func serving(id, version string) *controlv1.WorkerRecord {
	v := versionOf(version)
	return &controlv1.WorkerRecord{
		Id: id, Role: controlv1.Role_ROLE_ROUTER, Epoch: 1, Model: "fable", ModelDigest: v.Digest,
		Layout: &kvtransferv1.Layout{ModelDigest: v.Digest, ArithmeticClass: v.Class},
	}
}

// A router that starts serves what others serve, though most workers have another
// version by now.
func TestVersionOfOtherRouters(t *testing.T) {
	for _, test := range []struct {
		name   string
		others []*controlv1.WorkerRecord
		want   string
	}{
		{"one", []*controlv1.WorkerRecord{serving("r1", "a/1")}, "a/1"},
		{"most of them", []*controlv1.WorkerRecord{serving("r1", "b/1"), serving("r2", "a/1"), serving("r3", "a/1")}, "a/1"},
		{"one whose workers are gone", []*controlv1.WorkerRecord{serving("r1", "c/1")}, "b/1"},
		{"none", []*controlv1.WorkerRecord{{Id: "r1", Role: controlv1.Role_ROLE_ROUTER, Model: "fable"}}, "b/1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, byName)
			workers := []*controlv1.WorkerRecord{versioned("d1", "a/1"), versioned("d2", "b/1"), versioned("d3", "b/1"), versioned("d4", "b/1")}
			b.list(append(test.others, workers...)...)
			b.connect(workers...)
			if seen := b.versions(10); seen[test.want] != 10 {
				t.Errorf("%v, want %s", seen, test.want)
			}
		})
	}
}

// That routers serve different versions is said once, and once when it is over. Where
// the policy says what is served, none differs.
func TestRoutersThatDisagree(t *testing.T) {
	b := newBench(t, byName, versioned("d1", "a/1"))
	b.pass(6 * time.Second)
	said := func(actions []routing.Action) (out [][]string) {
		for _, action := range actions {
			if d, is := action.(routing.Disagree); is {
				out = append(out, d.Others)
			}
		}
		return out
	}
	for _, step := range []struct {
		event routing.Event
		want  int // of others that are said; -1: nothing is
		left  int
	}{
		{routing.ViewChanged{Workers: []*controlv1.WorkerRecord{versioned("d1", "a/1"), serving("r2", "b/1"), serving("r3", "a/1")}, Live: true}, 1, 1},
		{routing.ViewChanged{Workers: []*controlv1.WorkerRecord{versioned("d1", "a/1"), serving("r2", "b/1")}, Live: true}, -1, 1},
		{routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "a", ArithmeticClass: "1"}}}}, 0, 0},
	} {
		got := said(b.do(step.event))
		if step.want < 0 && len(got) != 0 || step.want >= 0 && (len(got) != 1 || len(got[0]) != step.want) || b.f.Disagreeing() != step.left {
			t.Errorf("said %v, want %d; %d disagree", got, step.want, b.f.Disagreeing())
		}
	}
}

// A worker that was told to drain is out at once, and for as long as etcd does not
// answer, whatever it lists.
func TestToldToDrain(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	serves := func() bool {
		for _, v := range b.f.Workers(b.now) {
			if v.GetRecord().GetState() != controlv1.WorkerState_WORKER_STATE_SERVING {
				return false
			}
		}
		return true
	}
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{decode("d1")}, Live: false})
	b.do(routing.Leaving{Worker: d1})
	b.pass(time.Minute)
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	if serves() {
		t.Error("it serves")
	}
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{decode("d1")}, Live: false}) // as by its own word
	if !serves() {
		t.Error("it does not serve again")
	}
}
