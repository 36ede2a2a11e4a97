package workloads

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// epoch is when drawn traces begin.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// WriteTrace draws requests and writes them in Azure's format: n lengths, with Poisson
// arrivals at the fitted rate. Equal seeds give equal traces.
func (s *Independent) WriteTrace(w io.Writer, n int, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 0xa2))
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, azureHeader)
	at := 0.0
	for range n {
		b := s.Bins[random.IntN(len(s.Bins))]
		prompt, output := b.Prompt.draw(random), b.Output.draw(random)
		writeAzure(out, trace.Entry{At: time.Duration(at * float64(time.Second)), PromptTokens: count(prompt), OutputTokens: count(output)})
		at += random.ExpFloat64() / s.RatePerSecond
	}
	return out.Flush()
}

func count(tokens float64) int { return int(max(math.Round(tokens), 1)) }

// entry is one request in Mooncake's format.
type entry struct {
	Milliseconds int64    `json:"timestamp"`
	Input        int      `json:"input_length"`
	Output       int      `json:"output_length"`
	Blocks       []uint64 `json:"hash_ids"`
	turn         int
}

// WriteTrace draws n requests and writes them in Mooncake's format, in order of time. Equal
// seeds give equal traces.
func (c *Conversations) WriteTrace(w io.Writer, n int, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 0x40))
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	var (
		due   []*entry     // the earliest first
		fresh uint64   = 1 // the first block is 0
	)
	insert := func(e *entry) {
		fresh = e.fill(fresh)
		at, _ := slices.BinarySearchFunc(due, e, (*entry).compare)
		due = slices.Insert(due, at, e)
	}
	begin := func(after float64) {
		insert(&entry{Milliseconds: int64(after * 1000), Input: count(c.First.draw(random)), Output: count(c.Output.draw(random)), Blocks: []uint64{0}})
	}
	next := random.ExpFloat64() / c.StartsPerSecond
	begin(next)
	for range n {
		// The next beginning is always drawn before what comes after it.
		for len(due) == 0 || float64(due[0].Milliseconds) >= next*1000 {
			next += random.ExpFloat64() / c.StartsPerSecond
			begin(next)
		}
		e := due[0]
		due = due[1:]
		if err := encoder.Encode(e); err != nil {
			return err
		}
		if random.Float64() >= c.Next[min(e.turn, len(c.Next)-1)] {
			continue
		}
		kept := min(max(int(math.Round(c.Kept.draw(random)*float64(len(e.Blocks)))), 1), len(e.Blocks))
		insert(&entry{
			Milliseconds: e.Milliseconds + int64(c.Seconds.draw(random)*1000), turn: e.turn + 1,
			Input: kept*trace.BlockTokens + count(c.Added.draw(random)), Output: count(c.Output.draw(random)), Blocks: slices.Clone(e.Blocks[:kept]),
		})
	}
	return out.Flush()
}

// fill gives the rest of the prompt blocks that nobody else has.
func (e *entry) fill(fresh uint64) uint64 {
	for len(e.Blocks)*trace.BlockTokens < e.Input {
		e.Blocks = append(e.Blocks, fresh)
		fresh++
	}
	return fresh
}

// compare puts the earlier request first, and of one millisecond the one that was drawn first.
func (e *entry) compare(other *entry) int {
	return cmp.Or(cmp.Compare(e.Milliseconds, other.Milliseconds), cmp.Compare(e.Blocks[len(e.Blocks)-1], other.Blocks[len(other.Blocks)-1]))
}

// WriteAzure writes requests with at most so many tokens, in Azure's format.
func WriteAzure(w io.Writer, all []trace.Entry, most int) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, azureHeader)
	for _, e := range all {
		if e.PromptTokens+e.OutputTokens <= most {
			writeAzure(out, e)
		}
	}
	return out.Flush()
}

const azureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens"

func writeAzure(w io.Writer, e trace.Entry) {
	fmt.Fprintf(w, "%s,%d,%d\n", epoch.Add(e.At).Format("2006-01-02 15:04:05.0000000"), e.PromptTokens, e.OutputTokens)
}
