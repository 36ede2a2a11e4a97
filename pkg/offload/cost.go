package offload

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// fetchOverhead is what a fetch takes besides moving the bytes: the call, and the
	// transfer's opening and end.
	fetchOverhead = time.Millisecond
	// fetchMargin is how many times longer computing has to take: a fetch that fails
	// is paid for on top.
	fetchMargin = 1.25
	// fetchSlack is how much longer than computing a fetch is waited for.
	fetchSlack = 1.1
)

// fetchCost compares fetching leading blocks of a prompt with computing them.
type fetchCost struct {
	// Model is the engine's step time. One without samples says nothing.
	Model latency.Model
	// BytesPerSecond is how fast the store is.
	BytesPerSecond float64
	// PageBytes and BlockTokens are of one block.
	PageBytes, BlockTokens int
	// ChunkTokens is the most prompt tokens of one step.
	ChunkTokens int
}

// compute is how long the engine takes for a prompt of which so many leading
// tokens are there.
func (c fetchCost) compute(prompt, there int) time.Duration {
	var total time.Duration
	for there < prompt {
		end := min(there+c.ChunkTokens, prompt)
		var step latency.StepWork
		step.Add(there, end-there, false)
		total += c.Model.Predict(step)
		there = end
	}
	return total
}

// saved is what it saves of the prompt's time to have until leading blocks where
// there are from.
func (c fetchCost) saved(prompt, from, until int) time.Duration {
	return max(c.compute(prompt, from*c.BlockTokens)-c.compute(prompt, until*c.BlockTokens), 0)
}

// fetch is how long fetching so many blocks takes.
func (c fetchCost) fetch(blocks int) time.Duration {
	return fetchOverhead + time.Duration(float64(blocks)*float64(c.PageBytes)/c.BytesPerSecond*float64(time.Second))
}

// worth says whether the blocks from..until of a prompt should be fetched, and for
// how long that may be waited for: a little longer than computing them would take.
func (c fetchCost) worth(prompt, from, until int) (limit time.Duration, worth bool) {
	if until <= from || c.Model.Samples == 0 || c.BytesPerSecond <= 0 {
		return 0, false
	}
	saved := c.saved(prompt, from, until)
	if float64(saved) < fetchMargin*float64(c.fetch(until-from)) {
		return 0, false
	}
	return time.Duration(fetchSlack * float64(saved)), true
}
