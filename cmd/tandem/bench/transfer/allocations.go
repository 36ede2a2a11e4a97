package transfer

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Allocations are those of the steady state: what a transfer of many blocks allocates
// beyond one of a few, for each chunk more.
type Allocations struct {
	// PerChunk are those in Tandem's own code: in a function of it, or of Go's library
	// that it called. AllPerChunk are those of gRPC and of all others besides.
	PerChunk    float64 `json:"per_chunk"`
	AllPerChunk float64 `json:"all_per_chunk"`
	// Chunks is over how many it was counted.
	Chunks int `json:"chunks"`
	// Sites are where Tandem allocates more than now and then, the most first.
	Sites []AllocationSite `json:"sites,omitempty"`
}

// AllocationSite is one function.
type AllocationSite struct {
	Function string  `json:"function"`
	PerChunk float64 `json:"per_chunk"`
}

// allocationPasses is how often all pages are moved: chunks are many in each.
const allocationPasses = 2

// rarely is how often in a chunk a site may allocate without being listed.
const rarely = .01

const (
	// ownPackages begins the names of Tandem's functions, ownBench those of this
	// package, which are not counted: they count.
	ownPackages = "github.com/tandem-serving/tandem/"
	ownBench    = ownPackages + "cmd/tandem/bench/transfer."
)

// allocations measures FigureAllocations. Every allocation is sampled meanwhile.
func (b *Bench) allocations(ctx context.Context, l *link, r *Result) error {
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = rate }()

	count := func(blocks int) (map[string]int64, int, error) {
		before, chunks := allocated(), 0
		for range min(b.plan.Samples, allocationPasses) {
			m, err := l.move(ctx, kvcache.BlockRange(0, blocks), nil)
			if err != nil {
				return nil, 0, err
			}
			chunks += m.chunks
		}
		after := allocated()
		for function, n := range before {
			after[function] -= n
		}
		return after, chunks, nil
	}
	// A first pass fills the pools.
	many := b.prompts * b.plan.blocks()
	if _, _, err := count(many); err != nil {
		return err
	}
	few, fewChunks, err := count(max(1, many/8))
	if err != nil {
		return err
	}
	all, allChunks, err := count(many)
	if err != nil {
		return err
	}
	if allChunks <= fewChunks {
		return fmt.Errorf("%d chunks hold all pages, and as many an eighth of them: pass more --bytes", allChunks)
	}
	r.Allocations = perChunk(few, all, allChunks-fewChunks)
	return nil
}

// perChunk is what all has beyond few, for each of chunks. A function that allocated
// less in all, now and then, counts nothing, and hides nothing of another.
func perChunk(few, all map[string]int64, chunks int) *Allocations {
	a := &Allocations{Chunks: chunks}
	own := int64(0)
	total := int64(0)
	for function, n := range all {
		if strings.HasPrefix(function, ownBench) {
			continue
		}
		n = max(0, n-few[function])
		total += n
		if !strings.HasPrefix(function, ownPackages) {
			continue
		}
		own += n
		if each := float64(n) / float64(chunks); each > rarely {
			a.Sites = append(a.Sites, AllocationSite{strings.TrimPrefix(function, ownPackages), each})
		}
	}
	a.PerChunk, a.AllPerChunk = float64(own)/float64(chunks), float64(total)/float64(chunks)
	slices.SortFunc(a.Sites, func(a, b AllocationSite) int { return cmp.Compare(b.PerChunk, a.PerChunk) })
	return a
}

// allocated is how many objects each function has allocated since the process began,
// by the innermost function that is not of Go's library.
func allocated() map[string]int64 {
	// A profile is complete up to the end of the last but one collection.
	runtime.GC()
	runtime.GC()
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, true); !ok; {
		records = make([]runtime.MemProfileRecord, n+n/4)
		n, ok = runtime.MemProfile(records, true)
		if ok {
			records = records[:n]
		}
	}
	counts := map[string]int64{}
	for i := range records {
		counts[allocator(records[i].Stack())] += records[i].AllocObjects
	}
	return counts
}

// allocator is the innermost function of a stack that is not of Go's library: the
// first part of such a package's path has no dot.
func allocator(stack []uintptr) string {
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		first, _, found := strings.Cut(frame.Function, "/")
		if found && strings.Contains(first, ".") {
			return frame.Function
		}
		if !more {
			return frame.Function
		}
	}
}
