package engine

import (
	"errors"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// ErrNotLent says that nothing is lent under a number: it was taken before, or recalled,
// or never lent.
var ErrNotLent = errors.New("no lent pages have this number")

// Lending is Pages whose slices can be copied straight to Pages in the same memory, by
// whoever is told their number. Its methods are safe for concurrent use.
type Lending interface {
	// Memory is a random number that stands for a memory of one process. Pages that give
	// the same one can take from each other; those that give 0 neither lend nor take.
	Memory() uint64
	// Lend lets Pages of the same Memory take the slices of blocks, once. It copies
	// nothing. ended is called once, with no lock held, when the slices will not be read
	// for the loan any more: after they were taken, or by Recall. It must not block. Until
	// then nobody changes the slices or blocks. After an error nothing is lent.
	Lend(layer int, blocks []kvcache.BlockID, ended func()) (loan uint64, err error)
	// Recall ends a loan that nobody takes. One that is being taken ends with that.
	Recall(loan uint64)
	// Take copies what Pages of the same Memory have lent into the slices of blocks, in
	// order: as many slices, of the same layer and layout. Whatever its error, the loan is
	// over afterwards; ErrNotLent says that there was none.
	Take(loan uint64, layer int, blocks []kvcache.BlockID) error
}
