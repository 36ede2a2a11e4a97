package routing_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// manyDecode are so many decode workers; change is of what each reports.
func manyDecode(t *testing.T, n int, change func(i int, r *controlv1.LoadReport)) *bench {
	var records []*controlv1.WorkerRecord
	for i := range n {
		records = append(records, decode(fmt.Sprintf("d%03d", i)))
	}
	b := newBench(t, nil, records...)
	for i, r := range records {
		b.do(load(r.GetId(), controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { change(i, r) }))
	}
	return b
}

func nothing(int, *controlv1.LoadReport) {}

// Of very many workers a decision looks at some, and yet finds the one that holds the prompt, and
// the only one that has room.
func TestFewOfMany(t *testing.T) {
	const workers, one = 500, "d321"
	b := manyDecode(t, workers, nothing)
	b.holds(one, sequence(30)...)
	r := b.request(agg, 1000)
	r.Hashes = numbered(b.f)
	if d, refusal, _ := b.arrive(r); d.Decode.ID != one {
		t.Errorf("went to %q instead of the one that holds the prompt: %+v", d.Decode.ID, refusal)
	}
	b = manyDecode(t, workers, func(i int, r *controlv1.LoadReport) {
		if i != 321 {
			r.BlocksFree = 0
		}
	})
	if d, refusal, _ := b.arrive(b.request(agg, 1000)); d.Decode.ID != one {
		t.Errorf("went to %q instead of the one that has room: %+v", d.Decode.ID, refusal)
	}
}

// The load of many requests is spread over all workers.
func TestManyWorkersShareTheLoad(t *testing.T) {
	const workers, each = 300, 4
	b := manyDecode(t, workers, nothing)
	sent := map[string]int{}
	for i := range workers * each {
		r := b.request(agg, 50)
		r.Tenant = fmt.Sprint("tenant ", i)
		d, _, _ := b.arrive(r)
		sent[d.Decode.ID]++
	}
	for i := range workers {
		if n := sent[fmt.Sprintf("d%03d", i)]; n < each/2 || n > 2*each {
			t.Errorf("d%03d was sent %d requests, %d is the mean", i, n, each)
		}
	}
}

// What is kept of a decision names the chosen worker first, counts every worker, and is small
// however many there are and whatever they say.
func TestDecisionsAreSmall(t *testing.T) {
	const workers = 200
	b := manyDecode(t, workers, func(i int, r *controlv1.LoadReport) {
		if i != 100 {
			r.BlocksFree = uint32(i % 3)
		}
	})
	for i := range workers / 2 {
		b.do(routing.Disconnected{Worker: routing.Ref{ID: fmt.Sprintf("d%03d", 2*i+1), Epoch: 1}})
	}
	d, refusal, _ := b.arrive(b.request(agg, 150))
	if d.Decode.ID != "d100" {
		t.Fatalf("went to %q: %+v", d.Decode.ID, refusal)
	}
	decision := d.Decision
	all := uint32(len(decision.GetCandidates()))
	for _, o := range decision.GetOthers() {
		all += o.GetWorkers()
	}
	if first := decision.GetCandidates()[0].GetWorkerId(); len(decision.GetCandidates()) != 8 || first != "d100" || all != workers {
		t.Errorf("%d candidates, the first %s, with the others %d of %d workers", len(decision.GetCandidates()), first, all, workers)
	}
	if size := proto.Size(decision); size > 4<<10 {
		t.Errorf("%d bytes: %v", size, decision)
	}
	t.Log(decision.GetOthers())
}
