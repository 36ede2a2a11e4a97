package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A request whose prompt a worker has goes to that worker, though no event has said so and others
// have less to do; unless it is full, or another one by now.
func TestRequestGoesToTheHolderOfItsPrompt(t *testing.T) {
	for _, mode := range []inferencev1.Mode{inferencev1.Mode_MODE_AUTO, agg, dis} {
		b := expecting(t, 2, 4)
		hashes := make([]kvcache.Hash, 16)
		for i := range hashes {
			hashes[i] = kvcache.Hash(i + 1)
		}
		send := func(holder routing.Ref) (routing.Dispatch, bool) {
			r := b.request(mode, 16*32+1)
			r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return hashes })
			r.Holder = holder
			d, _, sent := b.arrive(r)
			return d, sent
		}
		first, sent := send(routing.Ref{})
		if !sent {
			t.Fatalf("%v: not sent", mode)
		}
		for i := range 5 { // each adds to what the holder has to do
			d, sent := send(first.Decode)
			if !sent || d.Decode != first.Decode {
				t.Errorf("%v: answer %d goes to %s and not to %s, %v", mode, i, d.Decode.ID, first.Decode.ID, sent)
			}
			if mode != dis && d.Prefill != (routing.Ref{}) {
				t.Errorf("%v: the prompt, of which a token is left, goes to %s", mode, d.Prefill.ID)
			}
		}
		if d, sent := send(routing.Ref{ID: first.Decode.ID, Epoch: first.Decode.Epoch + 1}); !sent || d.Decode == first.Decode {
			t.Errorf("%v: that worker is another one by now, and %s gets it, %v", mode, d.Decode.ID, sent)
		}
		b.do(load(first.Decode.ID, controlv1.Role_ROLE_DECODE, func(l *controlv1.LoadReport) {
			l.RunningSequences, l.DecodingSequences, l.DecodingContextTokens, l.RunningContextTokens = 64, 64, 64000, 64000
		}))
		if d, sent := send(first.Decode); !sent || d.Decode == first.Decode {
			t.Errorf("%v: %s is full and gets it, %v", mode, d.Decode.ID, sent)
		}
	}
}

// Where no prefill worker can send to the holder, a disaggregated request goes to another decode worker. It
// waits where none can send anywhere for now.
func TestDisaggregatedRequestLeavesTheHolder(t *testing.T) {
	d1 := routing.Ref{ID: "d1", Epoch: 1}
	for _, c := range []struct {
		name         string
		closed, full bool // the path from p1 to d1 is, and p1 is
		want         string
	}{
		{"reached", false, false, "d1"},
		{"not reached", true, false, "d2"},
		{"nobody is reached now", false, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := expecting(t, 1, 2)
			for failures := 0; c.closed && failures < 2; b.pass(200 * time.Millisecond) {
				d, _, _ := b.arrive(b.request(dis, 100))
				if d.Decode == d1 {
					b.unreached(d)
					failures++
				}
			}
			b.do(load("p1", controlv1.Role_ROLE_PREFILL, func(l *controlv1.LoadReport) {
				l.BlocksFree = 4096
				if c.full {
					l.BlocksFree = 0
				}
			}))
			r := b.request(dis, 100)
			r.Holder = d1
			d, refusal, _ := b.arrive(r)
			if d.Decode.ID != c.want || refusal.Reason != "" {
				t.Errorf("it goes to %q: %+v", d.Decode.ID, refusal)
			}
			for _, o := range d.Decision.GetOthers() {
				t.Errorf("%d workers are not shown: %s", o.GetWorkers(), o.GetReason())
			}
		})
	}
}
