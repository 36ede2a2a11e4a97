package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// mesh is a router with workers of both roles, p1 and d1 and so on.
type mesh struct {
	*Router
	prefill, decode []*worker
}

func newMesh(prefill, decode int) *mesh {
	m := &mesh{Router: New(Config{Models: []Model{{}}, TransferBytesPerSecond: 1e9, LoadStale: time.Second, MaxQueueWait: time.Second}, rand.New(rand.NewPCG(1, 2)))}
	m.now = time.Unix(1000, 0)
	add := func(name string, role controlv1.Role) *worker {
		w := m.newWorker(&controlv1.WorkerRecord{
			Id: name, Epoch: 1, Role: role, Capacity: &controlv1.Capacity{Blocks: 1024, BlockTokens: 16, MaxSequences: 64, MaxWaiting: 64, ContextTokens: 4096},
			Layout: &kvtransferv1.Layout{Layers: 2, BlockTokens: 16, SliceBytes: 8000}, // 1,000 bytes a token
		})
		w.connected = true
		m.workers[name] = w
		m.order = append(m.order, w)
		return w
	}
	for i := range prefill {
		m.prefill = append(m.prefill, add(fmt.Sprint("p", i+1), controlv1.Role_ROLE_PREFILL))
	}
	for i := range decode {
		m.decode = append(m.decode, add(fmt.Sprint("d", i+1), controlv1.Role_ROLE_DECODE))
	}
	return m
}

// begin has a request of so many tokens run on two workers, and returns its id.
func (m *mesh) begin(from, to *worker, tokens int) string {
	m.Router.number++
	id := fmt.Sprint("r", m.Router.number)
	m.running[id] = &dispatched{prefill: from, decode: to, at: m.now, moves: tokens}
	for _, w := range [...]*worker{from, to} {
		w.add(id, &ownLoad{requestLoad: requestLoad{at: m.now, loadSum: loadSum{count: 1, context: tokens, moving: tokens}}})
	}
	return id
}

// end ends a request.
func (m *mesh) end(id string) {
	for _, w := range m.running[id].workers() {
		w.remove(id)
	}
	delete(m.running, id)
}

// moved has a transfer between two workers reach so many bytes a millisecond.
func (m *mesh) moved(from, to *worker, bytesPerMs uint64) {
	id := m.begin(from, to, 100)
	m.Router.sent(m.now, Sent{ID: id, Bytes: 1000 * bytesPerMs, Busy: time.Second})
	m.end(id)
}

// The speed of a pair is what was measured of it, and else of either worker with others, of any
// two, or the guess of the configuration.
func TestSpeedBetweenWorkers(t *testing.T) {
	const guess = 1e6 // bytes a millisecond
	for _, c := range []struct {
		name string
		do   func(m *mesh)
		want [2][2]float64 // by prefill and decode worker
	}{
		{"nothing measured", func(*mesh) {}, [2][2]float64{{guess, guess}, {guess, guess}}},
		{"one pair", func(m *mesh) { m.moved(m.prefill[0], m.decode[0], 5000) }, [2][2]float64{{5000, 5000}, {5000, 5000}}},
		{"one pair is slow", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 100)
			m.moved(m.prefill[0], m.decode[1], 5000)
			m.moved(m.prefill[1], m.decode[0], 5000)
		}, [2][2]float64{{100, 5000}, {5000, 5000}}},
		{"one of two pairs is slow", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 5000)
			m.moved(m.prefill[1], m.decode[0], 100)
		}, [2][2]float64{{5000, 5000 - 4900./speedFalls}, {100, 5000 - 4900./speedFalls}}},
		{"a worker is slow", func(m *mesh) {
			m.moved(m.prefill[1], m.decode[1], 100)
			m.moved(m.prefill[1], m.decode[0], 100)
			m.moved(m.prefill[0], m.decode[0], 5000)
		}, [2][2]float64{{5000, 5000}, {100, 100}}},
		{"a worker with one that is left", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 100)
			m.moved(m.prefill[1], m.decode[1], 5000)
			m.leaves(m.now, m.prefill[1])
		}, [2][2]float64{{100, 5000}, {100, 5000}}},
		{"what shared the network once does not count", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 1600)
			m.moved(m.prefill[0], m.decode[0], 800)
		}, [2][2]float64{{1550, 1550}, {1550, 1550}}},
		{"too small to tell", func(m *mesh) {
			id := m.begin(m.prefill[0], m.decode[0], 1)
			m.Router.sent(m.now, Sent{ID: id, Bytes: speedLeastBytes - 1, Busy: time.Hour})
		}, [2][2]float64{{guess, guess}, {guess, guess}}},
		{"no time", func(m *mesh) {
			id := m.begin(m.prefill[0], m.decode[0], 1)
			m.Router.sent(m.now, Sent{ID: id, Bytes: math.MaxUint64})
		}, [2][2]float64{{guess, guess}, {guess, guess}}},
		{"what cannot be", func(m *mesh) {
			id := m.begin(m.prefill[0], m.decode[0], 1)
			m.Router.sent(m.now, Sent{ID: id, Bytes: math.MaxUint64, Busy: 1})
		}, [2][2]float64{{mostBytesPerMs, mostBytesPerMs}, {mostBytesPerMs, mostBytesPerMs}}},
		{"long ago", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 100)
			m.now = m.now.Add(speedForget + 1)
		}, [2][2]float64{{guess, guess}, {guess, guess}}},
		{"the pair long ago", func(m *mesh) {
			m.moved(m.prefill[0], m.decode[0], 100)
			m.now = m.now.Add(speedForget + 1)
			m.moved(m.prefill[0], m.decode[1], 5000)
		}, [2][2]float64{{5000, 5000}, {5000, 5000}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh(2, 2)
			c.do(m)
			for i, from := range m.prefill {
				for j, to := range m.decode {
					if got := m.speedBetween(from, to); got != c.want[i][j] {
						t.Errorf("%s to %s: %v bytes a millisecond, want %v", from.ref.ID, to.ref.ID, got, c.want[i][j])
					}
				}
			}
		})
	}
}

// Senders that share the network of a decode worker reach a part of its speed each, and all of it
// together.
func TestSpeedOfSeveralSenders(t *testing.T) {
	m := newMesh(4, 1)
	for range 20 {
		var ids []string
		for _, from := range m.prefill {
			ids = append(ids, m.begin(from, m.decode[0], 100))
		}
		m.now = m.now.Add(4 * time.Millisecond)
		for _, id := range ids {
			m.Router.sent(m.now, Sent{ID: id, Bytes: 100_000, Busy: 4 * time.Millisecond})
			m.end(id)
		}
	}
	if got := m.speedOf(m.now, m.decode[0]); math.Abs(got/100_000-1) > 0.15 { // the last transfers count most
		t.Errorf("%v bytes a millisecond to the decode worker, want 100000", got)
	}
	if got := m.speedBetween(m.prefill[0], m.decode[0]); got != 25_000 {
		t.Errorf("%v bytes a millisecond from one, want 25000", got)
	}
}

// The time that transfers of unequal length have in common counts once, and all of it counts.
func TestSpeedOfUnequalTransfers(t *testing.T) {
	m := newMesh(2, 1)
	for range 20 {
		short, long := m.begin(m.prefill[1], m.decode[0], 1000), m.begin(m.prefill[0], m.decode[0], 5000)
		m.now = m.now.Add(time.Second)
		m.Router.sent(m.now, Sent{ID: short, Bytes: 500_000, Busy: 10 * time.Millisecond})
		m.now = m.now.Add(time.Millisecond)
		m.Router.sent(m.now, Sent{ID: long, Bytes: 5_000_000, Busy: 60 * time.Millisecond})
		m.end(short)
		m.end(long)
		if got := m.speedOf(m.now, m.decode[0]); got < 80_000 || got > 110_000 {
			t.Fatalf("%v bytes a millisecond, want 6,000,000 in 60 ms", got)
		}
	}
}

// KV comes after the KV of others that passes the network of either worker, and while its prompt is
// computed.
func TestWhenKVArrives(t *testing.T) {
	const tokens, speed = 1000, 10_000 // a megabyte, 100 ms
	for _, c := range []struct {
		name              string
		firstMs, promptMs float64
		do                func(m *mesh)
		want              float64 // milliseconds after the first token
	}{
		{"while its prompt is computed", 200, 150, func(*mesh) {}, 0},
		{"longer than its prompt", 200, 40, func(*mesh) {}, 60},
		{"after another from the same worker", 50, 50, func(m *mesh) { m.begin(m.prefill[0], m.decode[1], tokens) }, 150},
		{"after another to the same worker", 50, 50, func(m *mesh) { m.begin(m.prefill[1], m.decode[0], tokens) }, 150},
		{"while others wait for their prompts", 300, 50, func(m *mesh) { m.begin(m.prefill[0], m.decode[1], tokens) }, 50},
		{"beside others", 50, 50, func(m *mesh) { m.begin(m.prefill[1], m.decode[1], tokens) }, 50},
		{"after one that has arrived", 50, 50, func(m *mesh) {
			m.Router.sent(m.now, Sent{ID: m.begin(m.prefill[0], m.decode[0], tokens)})
		}, 50},
		{"after one that has failed", 50, 50, func(m *mesh) {
			m.end(m.begin(m.prefill[0], m.decode[0], tokens))
		}, 50},
		{"after what the sender reports", 50, 50, func(m *mesh) {
			m.prefill[0].report(m.now, &controlv1.LoadReport{UnsentTokens: tokens}, m.config, false)
		}, 150},
		{"after what the receiver reports", 50, 50, func(m *mesh) {
			m.decode[0].report(m.now, &controlv1.LoadReport{BlocksReserved: 125}, m.config, false)
		}, 250},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh(2, 2)
			for _, from := range m.prefill {
				for _, to := range m.decode {
					m.moved(from, to, speed)
				}
			}
			c.do(m)
			var got cost
			from, to := m.find(m.now, m.prefill[0]), m.find(m.now, m.decode[0])
			m.predictTransfer(&got, m.now, &from, &to, tokens, c.firstMs, c.promptMs)
			if got.transferMs != c.want || got.bytesPerMs != speed {
				t.Errorf("%v ms at %v bytes a millisecond, want %v", got.transferMs, got.bytesPerMs, c.want)
			}
		})
	}
}

// While nothing is measured, a request is tried now and then as if the network took no time.
func TestAGuessIsTried(t *testing.T) {
	m := newMesh(1, 1)
	predicted := func() float64 {
		var c cost
		from, to := m.find(m.now, m.prefill[0]), m.find(m.now, m.decode[0])
		m.predictTransfer(&c, m.now, &from, &to, 1000, 0, 0)
		return c.transferMs
	}
	if got := predicted(); got != 0 {
		t.Errorf("%v ms before any try", got)
	}
	m.guessTriedAt = m.now
	m.now = m.now.Add(guessTried - 1)
	if got := predicted(); got != 1 {
		t.Errorf("%v ms after a try, want that of the guess", got)
	}
	if m.now = m.now.Add(1); predicted() != 0 {
		t.Error("no other try")
	}
	if m.moved(m.prefill[0], m.decode[0], 10_000); predicted() != 100 {
		t.Errorf("%v ms, want what was measured", predicted())
	}
}

// Whatever transfers begin and end, and whoever comes and goes, what is still to be sent is that of
// the requests that run, what is remembered is bounded, and speeds are within what was measured.
func TestTransfersAreAccountedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMesh(3, 3)
		moving := make(map[string]int)
		ids := func() (all []string) {
			for id := range m.Router.number {
				if id := fmt.Sprint("r", id+1); m.running[id] != nil {
					all = append(all, id)
				}
			}
			return all
		}
		one := func(workers []*worker) *worker { return rapid.SampledFrom(workers).Draw(t, "worker") }
		least := math.Inf(1)
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				tokens := rapid.IntRange(0, 4096).Draw(t, "tokens")
				moving[m.begin(one(m.prefill), one(m.decode), tokens)] = tokens
			},
			"sent": func(t *rapid.T) {
				all := ids()
				if len(all) == 0 {
					return
				}
				e := Sent{ID: rapid.SampledFrom(all).Draw(t, "id"), Bytes: rapid.Uint64().Draw(t, "bytes"), Busy: time.Duration(rapid.Int64().Draw(t, "busy"))}
				m.Router.sent(m.now, e)
				moving[e.ID] = 0
				if e.Bytes >= speedLeastBytes && e.Busy > 0 {
					reached := min(max(float64(e.Bytes)/(float64(e.Busy)/1e6), leastBytesPerMs), mostBytesPerMs)
					least = min(least, reached)
				}
			},
			"ended": func(t *rapid.T) {
				if all := ids(); len(all) > 0 {
					id := rapid.SampledFrom(all).Draw(t, "id")
					m.end(id)
					delete(moving, id)
				}
			},
			"pass": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, int(speedForget)).Draw(t, "time")))
			},
			"": func(t *rapid.T) {
				want := make(map[*worker]int)
				for id, tokens := range moving {
					want[m.running[id].prefill] += tokens
					want[m.running[id].decode] += tokens
				}
				for _, w := range m.order {
					if w.total.moving != want[w] || w.unseenTotal.moving != want[w] || len(w.senders) > sendersMost {
						t.Fatalf("%s has %+v on its way, want %d tokens; %d senders", w.ref.ID, w.total, want[w], len(w.senders))
					}
				}
				for _, from := range m.prefill {
					for _, to := range m.decode {
						if got := m.speedBetween(from, to); got != 1e6 && (got < least*(1-1e-9) || got > mostBytesPerMs) {
							t.Fatalf("%v bytes a millisecond, measured %v at least", got, least)
						}
					}
				}
			},
		})
	})
}

// A decode worker remembers the speeds of a bounded number of senders, those that it heard of last,
// and none that is gone.
func TestSendersAreForgotten(t *testing.T) {
	m := newMesh(sendersMost+1, 1)
	to := m.decode[0]
	for _, from := range m.prefill {
		m.now = m.now.Add(time.Millisecond)
		m.moved(from, to, 5000)
	}
	if len(to.senders) != sendersMost || to.senders[0].from != m.prefill[sendersMost] {
		t.Errorf("%d senders, the first of them %s", len(to.senders), to.senders[0].from.ref.ID)
	}
	m.forgetSender(m.prefill[1])
	if len(to.senders) != sendersMost-1 {
		t.Errorf("%d senders after one is gone", len(to.senders))
	}
}

// speedBetween is what a transfer from one worker to another is taken to move.
func (m *mesh) speedBetween(from, to *worker) float64 {
	return to.speedBetween(m.now, from, min(m.speedOf(m.now, from), m.speedOf(m.now, to)))
}
