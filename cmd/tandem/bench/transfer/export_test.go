package transfer

// Compared is what a result says of rates whose rounds are given by name, and how
// fast some were before them.
func Compared(transport string, rounds map[string][]float64, tried, cpu map[string]float64) *Result {
	r := &Result{Plan: Plan{Transport: transport}}
	var rates []Rate
	for name, of := range rounds {
		rate := Rate{rounds: of}
		rate.summarize(name, tried[name], []float64{cpu[name], 2 * cpu[name]})
		rates = append(rates, rate)
	}
	r.setRates(rates)
	return r
}

// PerChunk is perChunk.
func PerChunk(few, all map[string]int64, chunks int) *Allocations { return perChunk(few, all, chunks) }

// Over is over.
func Over(memory []byte, size int, n int64, do func([]byte) (int, error)) error {
	return over(memory, size, n, do)
}

// WaitAlone is a wait at a barrier to which nobody else comes.
func WaitAlone() bool { return new(barrier).wait() }
