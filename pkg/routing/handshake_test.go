package routing_test

import (
	"fmt"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// A worker whose connection broke under a request may have it again once the same
// incarnation has answered on another connection.
func TestLostConnections(t *testing.T) {
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	for _, test := range []struct {
		name    string
		failure routing.Failure
		again   bool
	}{
		{"its connection broke", routing.Failure{Worker: d1, Gone: true, Connection: 1}, true},
		{"it broke before there was one", routing.Failure{Worker: d1, Gone: true}, false},
		{"it leaves", routing.Failure{Worker: d1, Gone: true, Leaves: true, Connection: 1}, false},
		{"another incarnation answered", routing.Failure{Worker: d1, Gone: true, Replaced: true, Connection: 1}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			b.do(routing.Disconnected{Worker: d1})
			b.do(routing.Connected{Worker: d1, Connection: 1})
			r := b.request(agg, 100)
			if _, refusal, _ := b.arrive(r); refusal.Reason != "" {
				t.Fatalf("%+v", refusal)
			}
			// The request hears of it first, then whoever keeps the connection.
			b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{test.failure}})
			r.Attempt, r.Failures = 1, []routing.Failure{test.failure}
			if d, refusal, answered := b.arrive(r); answered {
				t.Fatalf("answered at once: %v, %+v", d, refusal)
			}
			b.do(routing.Disconnected{Worker: d1})
			d, refusal, _ := answerTo(r.ID, b.do(routing.Connected{Worker: d1, Connection: 2}))
			if got := d.Decode == d1; got != test.again || refusal.Reason != "" {
				t.Errorf("given to it again: %v, want %v; %+v", got, test.again, refusal)
			}
		})
	}
}

// A worker's new addresses are known where it will be dialled, whether it is connected or not.
func TestNewAddressesAreDialled(t *testing.T) {
	for _, connected := range []bool{true, false} {
		at := func(address string) *controlv1.WorkerRecord {
			r := decode("d1")
			r.Addresses = []string{address}
			return r
		}
		b := newBench(t, nil, at("a:1"))
		if !connected {
			b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
		}
		for _, c := range [][2]string{{"a:1", "[]"}, {"b:1", "[b:1]"}, {"b:1", "[]"}} {
			address, want, dialled := c[0], c[1], []string{}
			for _, action := range b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{at(address)}, Live: true}) {
				if c, is := action.(routing.Connect); is {
					dialled = append(dialled, c.Record.GetAddresses()...)
				}
			}
			if fmt.Sprint(dialled) != want {
				t.Errorf("connected %v, at %s: dialled at %v", connected, address, dialled)
			}
		}
	}
}

// However many records lead nowhere, the router keeps track of a bounded number, and no
// request looks at them.
func TestManyRecordsOfNobody(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	records := []*controlv1.WorkerRecord{decode("d1")}
	for i := range 6000 {
		records = append(records, decode(fmt.Sprintf("bogus-%d", i)))
	}
	asked := 0
	for _, action := range b.do(routing.ViewChanged{Workers: records, Live: true}) {
		if c, is := action.(routing.Connect); is {
			asked++
			b.do(routing.ConnectFailed{Worker: c.Worker, Why: "nobody is there"})
		}
	}
	if asked != 4095 || b.f.UnansweredWorkers() != 6000 {
		t.Errorf("%d are asked, %d have not answered", asked, b.f.UnansweredWorkers())
	}
	if n := len(b.f.Workers(b.now)); n != 257 {
		t.Errorf("%d are shown", n)
	}
	d, refusal, _ := b.arrive(b.request(agg, 100))
	if d.Decode.ID != "d1" || len(d.Decision.GetCandidates()) != 1 {
		t.Errorf("%v, %+v", d.Decision, refusal)
	}
	b.do(routing.ViewChanged{Workers: records[:1], Live: true})
	if b.f.UnansweredWorkers() != 0 || len(b.f.Workers(b.now)) != 1 {
		t.Errorf("%d are left", b.f.UnansweredWorkers())
	}
}

// A worker that etcd still lists and whose connection is lost counts like one that was never
// reached, unless it leaves.
func TestLostWorkersCountAsUnanswered(t *testing.T) {
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	for _, test := range []struct {
		name string
		view routing.ViewChanged // after the connection is lost
		want int
	}{
		{"listed", routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{decode("d1")}}, 1},
		{"leaves", routing.ViewChanged{Live: true, Workers: []*controlv1.WorkerRecord{drainingDecode("d1")}}, 0},
		{"gone", routing.ViewChanged{Live: true}, 0},
		{"etcd is away", routing.ViewChanged{}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"), decode("d2"))
			if n := b.f.UnansweredWorkers(); n != 0 {
				t.Fatalf("%d at first", n)
			}
			b.do(routing.Disconnected{Worker: d1})
			test.view.Workers = append(test.view.Workers, decode("d2"))
			b.do(test.view)
			if n := b.f.UnansweredWorkers(); n != test.want {
				t.Errorf("%d, want %d", n, test.want)
			}
			if test.name == "listed" {
				b.do(routing.Connected{Worker: d1, Connection: 2})
				if n := b.f.UnansweredWorkers(); n != 0 {
					t.Errorf("%d when it answers again", n)
				}
			}
		})
	}
}

// A prefix cache that is not to be had is asked for ever more rarely.
func TestListBlocksThatFail(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	asked := 1 // when it was connected
	for end := b.now.Add(10 * time.Minute); b.now.Before(end); {
		b.do(routing.BlocksListed{Worker: d1})
		for _, action := range b.pass(time.Minute + time.Second) {
			if _, is := action.(routing.ListBlocks); is {
				asked++
			}
		}
	}
	if asked < 5 || asked > 20 {
		t.Errorf("asked %d times in ten minutes", asked)
	}
}
