package routing_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// deface gives numbers of a message, those of the messages within it included,
// extreme values. What names the worker stays, so that the message is believed.
func deface(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsList() || field.IsMap() || field.Name() == "epoch" || field.Kind() == protoreflect.EnumKind:
			continue
		case field.Kind() == protoreflect.MessageKind:
			deface(t, m.Mutable(field).Message())
			continue
		}
		if !rapid.Bool().Draw(t, string(field.Name())) {
			continue
		}
		switch field.Kind() {
		case protoreflect.DoubleKind:
			m.Set(field, protoreflect.ValueOfFloat64(rapid.SampledFrom([]float64{
				math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, math.SmallestNonzeroFloat64, 1e9, math.MaxFloat64, -math.MaxFloat64,
			}).Draw(t, "double")))
		case protoreflect.Uint32Kind:
			m.Set(field, protoreflect.ValueOfUint32(rapid.SampledFrom([]uint32{0, 1, math.MaxInt32, math.MaxUint32}).Draw(t, "uint32")))
		case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
			m.Set(field, protoreflect.ValueOfUint64(rapid.SampledFrom([]uint64{0, 1, math.MaxInt64, math.MaxUint64}).Draw(t, "uint64")))
		}
	}
}

// Whatever workers say of themselves, every request is answered and nothing
// panics.
func TestNothingThatWorkersSayPanics(t *testing.T) { rapid.Check(t, othersReportAnything) }

// FuzzReports looks for such reports by what they reach.
func FuzzReports(f *testing.F) { f.Fuzz(rapid.MakeFuzz(othersReportAnything)) }

func othersReportAnything(t *rapid.T) {
	c := config()
	c.Router = "r1"
	f := routing.New(c, rand.New(rand.NewPCG(1, 2)))
	now := time.Unix(1000, 0)
	ids := []string{"p1", "p2", "d1", "d2"}
	number := func(name string) uint64 {
		return rapid.SampledFrom([]uint64{0, 1, 2, 1 << 60, math.MaxUint64}).Draw(t, name)
	}
	var view routing.ViewChanged
	for _, id := range ids {
		role := controlv1.Role_ROLE_DECODE
		if id[0] == 'p' {
			role = controlv1.Role_ROLE_PREFILL
		}
		r := record(id, role)
		deface(t, r.ProtoReflect())
		r.Id = id
		view.Workers = append(view.Workers, r)
	}
	view.Workers = append(view.Workers, &controlv1.WorkerRecord{Id: "r2", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
	f.Handle(now, view)
	for _, id := range ids {
		f.Handle(now, routing.Connected{Worker: routing.Ref{ID: id, Epoch: 1}})
	}
	for i := range 20 {
		id := rapid.SampledFrom(ids).Draw(t, "worker")
		origin := &controlv1.Origin{Id: id, Epoch: 1, Sequence: number("sequence")}
		report := &controlv1.LoadReport{StepTime: &controlv1.StepTimeModel{Samples: 1}}
		deface(t, report.ProtoReflect())
		report.Origin = origin
		f.Handle(now, routing.LoadReported{Report: report})
		told := &controlv1.RouterReport{Shares: []*controlv1.RouterShare{{Sent: []*controlv1.SentRequest{{}}}}, Held: []*controlv1.HeldRequests{{}}}
		deface(t, told.ProtoReflect())
		for _, share := range told.GetShares() {
			deface(t, share.ProtoReflect())
			deface(t, share.GetSent()[0].ProtoReflect())
			share.WorkerId, share.Epoch = id, 1
		}
		deface(t, told.GetHeld()[0].ProtoReflect())
		told.Origin = &controlv1.Origin{Id: "r2", Epoch: 1, Sequence: number("told")}
		f.Handle(now, routing.RouterReported{Report: told})
		f.Handle(now, routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: origin, Stored: []uint64{number("hash")}}})
		f.Handle(now, routing.BlocksListed{Worker: routing.Ref{ID: id, Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, Sequence: number("listed"), BlockHashes: []uint64{1, 2}}})
		f.Handle(now, routing.PolicyChanged{Policy: &controlv1.Policy{
			DisaggregateMinTokens: proto.Uint32(rapid.SampledFrom([]uint32{0, 1, math.MaxUint32}).Draw(t, "threshold")),
		}})
		r := routing.Request{
			ID: string(rune('a' + i)), Tenant: "t", Model: "fable", Arrived: now, Tokens: 100, MaxNew: 100,
			Mode: rapid.SampledFrom([]inferencev1.Mode{auto, dis, agg}).Draw(t, "mode"),
			TTFT: rapid.SampledFrom([]time.Duration{0, 1, math.MaxInt64}).Draw(t, "ttft"),
			Hashes: hashed(f, func(key routing.BlockKey) []kvcache.Hash {
				return kvcache.BlockHashes(1, make([]int32, 100), key.BlockTokens)
			}),
		}
		if refused(f.Handle(now, routing.Arrived{Request: r}), r.ID) {
			continue
		}
		now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
		f.Handle(now, routing.Tick{})
		if rapid.Bool().Draw(t, "ended") {
			f.Handle(now, routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: routing.Ref{ID: id, Epoch: 1}, Busy: true, RetryAfter: math.MaxInt64}}})
		}
	}
	f.Handle(now.Add(time.Hour), routing.Tick{})
	if f.Waiting() != 0 {
		t.Fatalf("%d wait for ever", f.Waiting())
	}
}

func refused(actions []routing.Action, id string) bool {
	_, refusal, answered := answerTo(id, actions)
	return answered && refusal.Reason != ""
}

// Empty messages name no worker.
func TestEmptyMessages(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	for _, event := range []routing.Event{
		routing.RouterReported{}, routing.LoadReported{}, routing.LoadReported{Report: &controlv1.LoadReport{}},
		routing.BlocksChanged{}, routing.BlocksChanged{Event: &controlv1.KvEvent{}},
		routing.BlocksListed{}, routing.PolicyChanged{},
		routing.ViewChanged{Workers: []*controlv1.WorkerRecord{nil, {}}},
	} {
		if actions := b.do(event); len(actions) != 0 {
			t.Errorf("%T gives %v", event, actions)
		}
	}
}

// One report that is no number does not stop dispatch.
func TestStepTimeThatIsNoNumber(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), -1, math.MaxFloat64} {
		b := newBench(t, nil, decode("d1"))
		b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.StepTime.BaseMs = bad }))
		if d, _, _ := b.arrive(b.request(agg, 10)); d.Decode.ID != "d1" {
			t.Errorf("%v: %v", bad, d)
		}
	}
}

// A step time without a measurement is none, whatever it says.
func TestStepTimeWithoutSamples(t *testing.T) {
	decided := func(step *controlv1.StepTimeModel) (of []string) {
		b := newBench(t, nil, decode("d1"), decode("d2"))
		b.do(load("d2", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.StepTime = step }))
		for range 8 {
			d, _, _ := b.arrive(b.request(agg, 500))
			of = append(of, fmt.Sprint(d.Decode, d.Decision))
		}
		return of
	}
	if got, want := decided(&controlv1.StepTimeModel{BaseMs: 1000, PerTokenMs: 1000}), decided(nil); !slices.Equal(got, want) {
		t.Errorf("%q, without a step time %q", got, want)
	}
}
