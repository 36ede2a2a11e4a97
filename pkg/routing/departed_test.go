package routing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A worker that drained and left can be asked back, since its address is remembered;
// one that was merely lost is not, and neither is one that is back.
func TestWorkersThatLeftAreRemembered(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	b.do(routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{drainingDecode("d1"), decode("d2")}})
	if b.f.Left("d1") != nil {
		t.Error("it is there still")
	}
	b.do(routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d2")}})
	if record := b.f.Left("d1"); record.GetId() != "d1" {
		t.Errorf("remembered: %v", record)
	}
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d2", Epoch: decode("d2").GetEpoch()}})
	b.do(routing.ViewChanged{Live: true})
	if record := b.f.Left("d2"); record != nil {
		t.Errorf("lost, and remembered: %v", record)
	}
	b.do(routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1")}})
	if b.f.Left("d1") != nil {
		t.Error("it is back")
	}
	for i := range 1000 { // bounded
		id := fmt.Sprintf("x%d", i)
		b.do(routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{drainingDecode(id)}})
		b.do(routing.Connected{Worker: routing.Ref{ID: id, Epoch: decode(id).GetEpoch()}})
	}
	b.do(routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{drainingDecode("unmet")}})
	b.do(routing.ViewChanged{Live: true})
	if b.f.Left("unmet") != nil {
		t.Error("one that never answered is remembered")
	}
	if b.f.Left("x999") == nil || b.f.Left("x1") != nil {
		t.Error("all that ever left are remembered, or none")
	}
}

// A drained worker is shown as such until it is taken back or drains anew.
func TestDrainedWorkersAreShown(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	ref := routing.Ref{ID: "d1", Epoch: decode("d1").GetEpoch()}
	for _, step := range []struct {
		event routing.Event
		want  controlv1.WorkerState
	}{
		{routing.Leaving{Worker: ref}, controlv1.WorkerState_WORKER_STATE_DRAINING},
		{routing.Leaving{Worker: ref, Drained: true}, controlv1.WorkerState_WORKER_STATE_DRAINED},
		{routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{drainingDecode("d1")}}, controlv1.WorkerState_WORKER_STATE_DRAINED},
		{routing.Leaving{Worker: ref}, controlv1.WorkerState_WORKER_STATE_DRAINING},
		{routing.Leaving{Worker: ref, Drained: true}, controlv1.WorkerState_WORKER_STATE_DRAINED},
		{routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1")}}, controlv1.WorkerState_WORKER_STATE_SERVING},
	} {
		b.do(step.event)
		if got := b.f.Workers(b.now)[0].GetRecord().GetState(); got != step.want {
			t.Errorf("after %T %+[1]v: %v, want %v", step.event, got, step.want)
		}
	}
}

func drainingDecode(id string) *controlv1.WorkerRecord {
	record := decode(id)
	record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
	return record
}

// A refusal that says that the worker leaves may come after that was taken back: its
// record counts again after a while, if it reports its load.
func TestRefusalThatCameLate(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	r := b.request(inferencev1.Mode_MODE_AGGREGATED, 10)
	d, _, ok := b.arrive(r)
	if !ok {
		t.Fatal("it is not dispatched")
	}
	b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: d.Decode, Gone: true, Leaves: true}}})
	state := func() controlv1.WorkerState { return b.f.Workers(b.now)[0].GetRecord().GetState() }
	number := uint64(0)
	report := func() {
		number++
		b.do(routing.LoadReported{Report: &controlv1.LoadReport{Origin: &controlv1.Origin{Id: "d1", Epoch: decode("d1").GetEpoch(), Sequence: number}, Role: controlv1.Role_ROLE_DECODE, BlocksFree: 100, BlocksTotal: 100}})
	}
	report()
	if state() != controlv1.WorkerState_WORKER_STATE_DRAINING {
		t.Errorf("at once %v", state())
	}
	b.now = b.now.Add(6 * time.Second)
	report()
	if state() != controlv1.WorkerState_WORKER_STATE_SERVING {
		t.Errorf("later %v", state())
	}
}

// A record from before a worker said that it leaves says nothing against that, whatever else changed.
func TestRecordFromBeforeADrain(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	ref := routing.Ref{ID: "d1", Epoch: decode("d1").GetEpoch()}
	for _, step := range []struct {
		after time.Duration
		event routing.Event
		want  controlv1.WorkerState
	}{
		{0, routing.Leaving{Worker: ref}, controlv1.WorkerState_WORKER_STATE_DRAINING},
		{time.Second, routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1"), decode("d2")}}, controlv1.WorkerState_WORKER_STATE_DRAINING},
		{time.Second, routing.Leaving{Worker: ref, Drained: true}, controlv1.WorkerState_WORKER_STATE_DRAINED},
		{time.Second, routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1")}}, controlv1.WorkerState_WORKER_STATE_DRAINED},
		{3 * time.Second, load("d1", controlv1.Role_ROLE_DECODE, nil), controlv1.WorkerState_WORKER_STATE_DRAINED},
		{2 * time.Second, load("d1", controlv1.Role_ROLE_DECODE, nil), controlv1.WorkerState_WORKER_STATE_SERVING},
		{0, routing.Leaving{Worker: ref}, controlv1.WorkerState_WORKER_STATE_DRAINING},
		{6 * time.Second, routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1")}}, controlv1.WorkerState_WORKER_STATE_SERVING},
	} {
		b.now = b.now.Add(step.after)
		b.do(step.event)
		if got := b.f.Workers(b.now)[0].GetRecord().GetState(); got != step.want {
			t.Errorf("after %T %+[1]v: %v, want %v", step.event, got, step.want)
		}
	}
}

// Where a pool was drained, refusals say so, and what takes its workers back.
func TestRefusalsOfADrainedPool(t *testing.T) {
	drains := func(record *controlv1.WorkerRecord) *controlv1.WorkerRecord {
		record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
		return record
	}
	lost := decode("d2")
	const undrain = "take %[1]s back with 'tandem undrain %[1]s', or start another"
	for _, test := range []struct {
		name       string
		views      [][]*controlv1.WorkerRecord // one after the other
		mode       inferencev1.Mode
		want, deny string
	}{
		{"none ever", nil, agg, "retry when one has registered (none is registered)", "undrain"},
		{"beside one without a connection", [][]*controlv1.WorkerRecord{{drains(decode("d1")), lost}}, agg, fmt.Sprintf(undrain, "d1"), "registered"},
		{"draining", [][]*controlv1.WorkerRecord{{drains(decode("d1"))}}, agg, fmt.Sprintf(undrain, "d1") + " (d1: it drains)", "registered"},
		{"drained", [][]*controlv1.WorkerRecord{{drains(decode("d1"))}, {}}, agg, fmt.Sprintf(undrain, "d1") + " (d1: it drained and left)", "registered"},
		{"the last of two", [][]*controlv1.WorkerRecord{{decode("d1"), drains(decode("d2"))}, {drains(decode("d1"))}, {}}, agg, fmt.Sprintf(undrain, "d1"), "registered"},
		{"of the prefill pool", [][]*controlv1.WorkerRecord{{decode("d1"), drains(prefill("p1"))}, {decode("d1")}}, dis, fmt.Sprintf(undrain, "p1") + " (p1: it drained and left)", "registered"},
		{"another pool's", [][]*controlv1.WorkerRecord{{drains(prefill("p1"))}, {}}, agg, "retry when one has registered (none is registered)", "undrain"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil)
			for _, view := range test.views {
				b.do(routing.ViewChanged{Live: true, Workers: view})
				for _, record := range view {
					if record == lost {
						continue
					}
					b.do(routing.Connected{Worker: routing.Ref{ID: record.GetId(), Epoch: record.GetEpoch()}, Record: record})
				}
			}
			r := b.request(test.mode, 10)
			b.arrive(r)
			_, refusal, ok := answerTo(r.ID, b.pass(2*time.Second))
			if !ok || refusal.Reason != api.ReasonNoWorkers || !strings.Contains(refusal.Message, test.want) || strings.Contains(refusal.Message, test.deny) {
				t.Errorf("answered %v: %s %s", ok, refusal.Reason, refusal.Message)
			}
		})
	}
}
