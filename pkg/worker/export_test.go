package worker

// Prefills is how many sequences are prefills, as they are counted, and as they are.
func (w *Worker) Prefills() (counted, are int) {
	for _, q := range w.sequences {
		if _, is := q.owner.(*prefill); is {
			are++
		}
	}
	return w.prefills, are
}
