package worker

// Prefills is how many lives are prefills, as they are counted, and as they are.
func (w *Worker) Prefills() (counted, are int) {
	for _, l := range w.lives {
		if _, is := l.owner.(*prefill); is {
			are++
		}
	}
	return w.prefills, are
}
