package router

import "context"

// scripted sends all tokens of an answer at once, and then ends.
type scripted struct{ ends func() }

func (s scripted) do(_ context.Context, _ string, tokens int, got func(int64)) error {
	for range tokens {
		got(1 << 30)
	}
	s.ends()
	return nil
}

func (scripted) close() error { return nil }

// Counted is how many requests count of one that begins and ends while it is measured or is not.
func Counted(ctx context.Context, began, ended bool) (int64, error) {
	l := newLoad(Plan{}, newSendTimes(), nil)
	l.measuring.Store(began)
	err := l.request(ctx, scripted{func() { l.measuring.Store(ended) }}, "bench-0-0", 3, func() {})
	return l.requests.Load(), err
}
