package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// nothing is an event that only has a number.
type nothing int

func (nothing) happen()       {}
func (nothing) fetch(int) int { return 0 }

// What is planned comes in the order of its moments, whatever is planned meanwhile and however far ahead.
func TestQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ahead := []int64{0, 1, 1 << (slotBits - 1), 1 << slotBits, int64(time.Millisecond), slotCount << slotBits, slotCount<<slotBits - 1, int64(time.Second), int64(time.Hour)}
	var q queue
	var want []planned
	now, order := int64(0), uint64(0)
	for range 20000 {
		if random.IntN(100) < 52 {
			order++
			at := now
			if d := ahead[random.IntN(len(ahead))]; d > 0 {
				at += random.Int64N(d + 1)
			}
			p := planned{moment{at: at, order: order}, nothing(order)}
			q.push(p.moment, p.event)
			i, _ := slices.BinarySearchFunc(want, p, func(a, b planned) int {
				if a.before(b.moment) {
					return -1
				}
				return 1
			})
			want = slices.Insert(want, i, p)
			continue
		}
		until := now + ahead[random.IntN(len(ahead))]
		got, is := q.pop(until)
		if due := len(want) > 0 && want[0].at <= until; is != due || is && got != want[0] {
			t.Fatalf("%v %v comes until %d, instead of %v", got, is, until, want[:min(len(want), 1)])
		}
		if !is {
			now = until
			continue
		}
		now, want = got.at, want[1:]
	}
	for _, p := range want {
		if got, is := q.pop(1 << 62); !is || got != p {
			t.Fatalf("%v %v comes instead of %v", got, is, p)
		}
	}
	if p, is := q.pop(1 << 62); is || q.count != 0 {
		t.Fatalf("%v is left, and %d", p, q.count)
	}
}
