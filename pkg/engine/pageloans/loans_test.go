package pageloans_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
)

// A loan ends once: it is taken, or recalled, or neither.
func TestLoan(t *testing.T) {
	book := pageloans.NewBook[string]()
	ended := 0
	lend := func() uint64 {
		number := book.Lend(pageloans.Loan[string]{From: "pages", Layer: 3, Ended: func() { ended++ }})
		if number == 0 {
			t.Fatal("the number is 0")
		}
		return number
	}
	taken := lend()
	l, open := book.Take(taken)
	if !open || l.From != "pages" || l.Layer != 3 || ended != 0 {
		t.Errorf("taken %+v, %v, ended %d times", l, open, ended)
	}
	l.Ended()
	if _, open := book.Take(taken); open {
		t.Error("it was taken twice")
	}
	book.Recall(taken)
	recalled := lend()
	book.Recall(recalled)
	book.Recall(recalled)
	if _, open := book.Take(recalled); open || ended != 2 {
		t.Errorf("taken after its recall: %v; ended %d times", open, ended)
	}
}

// Memories are told apart, and so are loans.
func TestNumbersDiffer(t *testing.T) {
	first, second := pageloans.NewBook[string](), pageloans.NewBook[string]()
	if first.Memory() == second.Memory() || first.Memory() == 0 {
		t.Errorf("memories %#x and %#x", first.Memory(), second.Memory())
	}
	number := first.Lend(pageloans.Loan[string]{Ended: func() { t.Error("it ended") }})
	if _, open := second.Take(number); open {
		t.Error("a loan is known in another memory")
	}
}

// Whoever is quicker, a loan ends once.
func TestTakeAndRecall(t *testing.T) {
	book := pageloans.NewBook[string]()
	for range 200 {
		var ended atomic.Int32
		number := book.Lend(pageloans.Loan[string]{Ended: func() { ended.Add(1) }})
		var both sync.WaitGroup
		both.Go(func() { book.Recall(number) })
		both.Go(func() {
			if l, open := book.Take(number); open {
				l.Ended()
			}
		})
		both.Wait()
		if ended.Load() != 1 {
			t.Fatalf("it ended %d times", ended.Load())
		}
	}
}
