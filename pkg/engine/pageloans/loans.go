// Package pageloans keeps track of the slices that Pages in one memory lend each other.
// Implementations of engine.Lending import it. It starts no goroutines.
package pageloans

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Book is what is lent of one memory, and was not taken. P is what knows where slices
// are. It is safe for concurrent use. It holds what its lenders have on its way, which
// they bound.
type Book[P any] struct {
	memory uint64

	mu   sync.Mutex
	open map[uint64]*Loan[P]
}

// Loan is some slices of one layer that may be copied.
type Loan[P any] struct {
	From   P
	Layer  int
	Blocks []kvcache.BlockID
	// Ended is called once, when they will not be read for the loan any more.
	Ended func()
}

// NewBook draws the number of a memory.
func NewBook[P any]() *Book[P] {
	return &Book[P]{memory: draw(), open: map[uint64]*Loan[P]{}}
}

// Memory is the number of the memory, never 0.
func (b *Book[P]) Memory() uint64 { return b.memory }

// Lend enters a loan and gives its number, which nobody can guess and which is never 0.
func (b *Book[P]) Lend(l Loan[P]) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	number := draw()
	for b.open[number] != nil {
		number = draw()
	}
	b.open[number] = &l
	return number
}

// Take removes a loan and gives it to the caller, who owes it a call of Ended. False:
// there is none of this number.
func (b *Book[P]) Take(number uint64) (*Loan[P], bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.open[number]
	delete(b.open, number)
	return l, l != nil
}

// Recall ends a loan that was not taken.
func (b *Book[P]) Recall(number uint64) {
	if l, open := b.Take(number); open {
		l.Ended()
	}
}

// draw is a random number that is not 0.
func draw() (number uint64) {
	var random [8]byte
	for number == 0 {
		_, _ = rand.Read(random[:]) // never fails
		number = binary.LittleEndian.Uint64(random[:])
	}
	return number
}
