package engine

import (
	"encoding/binary"
	"fmt"
)

// Pooling collects the hidden states of a sequence: what the model's last layer gives for each
// token, after the final norm. They are added in the order of the tokens, in float64, so that
// the mean is the same however the prompt is divided into steps, and whatever runs beside it.
//
// One goroutine at a time uses it: that of the Step, and once the sequence has ended, whoever
// wanted the mean. What is in it is not recorded, since no core looks into it.
type Pooling struct {
	sum    []float64
	tokens int
}

// NewPooling is an empty one, for a hidden size.
func NewPooling(hiddenSize int) *Pooling { return &Pooling{sum: make([]float64, hiddenSize)} }

// Clear forgets what was added.
func (p *Pooling) Clear() {
	clear(p.sum)
	p.tokens = 0
}

// Size is the hidden size.
func (p *Pooling) Size() int { return len(p.sum) }

// Add adds the hidden state of the next token, as long as Size.
func (p *Pooling) Add(state []float64) {
	for i, x := range state {
		p.sum[i] += x
	}
	p.tokens++
}

// Mean is the mean over the tokens; nil without any.
func (p *Pooling) Mean() []float32 {
	if p.tokens == 0 {
		return nil
	}
	mean := make([]float32, len(p.sum))
	for i, x := range p.sum {
		mean[i] = float32(x / float64(p.tokens))
	}
	return mean
}

// maxPoolSize is more than any hidden size.
const maxPoolSize = 1 << 20

// AppendBinary appends the size, for recordings.
func (p Pooling) AppendBinary(b []byte) ([]byte, error) {
	return binary.AppendUvarint(b, uint64(len(p.sum))), nil
}

// UnmarshalBinary makes an empty pool of the size that AppendBinary wrote.
func (p *Pooling) UnmarshalBinary(b []byte) error {
	n, used := binary.Uvarint(b)
	if used != len(b) || n > maxPoolSize {
		return fmt.Errorf("pooling in %d bytes is none", len(b))
	}
	*p = *NewPooling(int(n))
	return nil
}
