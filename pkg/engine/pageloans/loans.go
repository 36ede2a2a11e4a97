// Package pageloans keeps track of the slices that Pages in one memory lend each other.
// Implementations of engine.Lending import it. It starts no goroutines.
package pageloans

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
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
func NewBook[P any]() (*Book[P], error) {
	memory, err := draw()
	if err != nil {
		return nil, err
	}
	return &Book[P]{memory: memory, open: map[uint64]*Loan[P]{}}, nil
}

// Memory is the number of the memory, never 0.
func (b *Book[P]) Memory() uint64 { return b.memory }

// Lend enters a loan and gives its number, which nobody can guess and which is never 0.
func (b *Book[P]) Lend(l Loan[P]) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		number, err := draw()
		if err != nil {
			return 0, err
		}
		if b.open[number] == nil {
			b.open[number] = &l
			return number, nil
		}
	}
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
func draw() (uint64, error) {
	var random [8]byte
	for {
		if _, err := rand.Read(random[:]); err != nil {
			return 0, fmt.Errorf("draw a random number: %w", err)
		}
		if number := binary.LittleEndian.Uint64(random[:]); number != 0 {
			return number, nil
		}
	}
}
