package tokenizer

// pace asks whether the work is still wanted, once for every bytesPerCheck bytes.
type pace struct {
	stop func() error
	next int
}

func newPace(stop func() error) pace { return pace{stop: stop, next: bytesPerCheck} }

// at says that the work has come to byte i.
func (p *pace) at(i int) error {
	if i < p.next {
		return nil
	}
	p.next = i + bytesPerCheck
	return p.stop()
}

// carryOn is for work that nobody waits for.
func carryOn() error { return nil }
