package cuda_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// stagingPages are what a CUDA engine's pages are.
type stagingPages interface {
	engine.Pages
	engine.Staging
}

// stage lends a buffer, which comes back when the test ends.
func stage(t *testing.T, p engine.Staging, bytes int) []byte {
	t.Helper()
	memory, release := p.Stage(bytes)
	if len(memory) < bytes {
		t.Fatalf("asked for a staging buffer of %d bytes, got %d", bytes, len(memory))
	}
	t.Cleanup(release)
	return memory[:bytes]
}

// stageAll lends all buffers that are idle.
func stageAll(p engine.Staging) (memories [][]byte, releases []func()) {
	for {
		memory, release := p.Stage(1)
		if memory == nil {
			return memories, releases
		}
		memories, releases = append(memories, memory), append(releases, release)
	}
}

// random makes bytes.
func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Copies to and from staging buffers and other memory give the same bytes, for slices of
// several sizes, in any order, from any byte on, and change nothing else.
func TestStagedCopies(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "llama"))
	for seed, blockTokens := range []int{16, 64, 256} {
		p := newEngine(t, w, cuda.Config{Blocks: 40, BlockTokens: blockTokens, MaxBatchTokens: 16, MaxSequences: 1, NoGraphs: true}).Pages().(stagingPages)
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		slice := p.Layout().SliceBytes
		want := random(r, 40*slice) // layer 1, block by block
		if err := p.Write(1, table(0, 40), want); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			n := 1 + r.IntN(min(20, (1<<20-200)/slice))
			var blocks []kvcache.BlockID
			for _, b := range r.Perm(40)[:n] {
				blocks = append(blocks, kvcache.BlockID(b))
			}
			if r.IntN(2) == 0 {
				blocks = table(r.IntN(20), n)
			}
			before := r.IntN(100)
			staged, other := stage(t, p, before+n*slice+10), make([]byte, before+n*slice+10)
			memories := [][]byte{staged, other}
			r.Shuffle(2, func(i, j int) { memories[i], memories[j] = memories[j], memories[i] })
			from, to := memories[0][before:before+n*slice], memories[1]
			copy(from, random(r, len(from)))
			for i, b := range blocks {
				copy(want[int(b)*slice:], from[i*slice:(i+1)*slice])
			}
			if err := p.Write(1, blocks, from); err != nil {
				t.Fatal(err)
			}
			around := bytes.Clone(to)
			copy(around[before:], from)
			if err := p.Read(1, blocks, to[before:before+n*slice]); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(to, around) {
				t.Fatalf("blocks of %d: what is read is not what was written, or more was", blockTokens)
			}
			runtime.KeepAlive(staged)
		}
		all := make([]byte, len(want))
		if err := p.Read(1, table(0, 40), all); err != nil || !bytes.Equal(all, want) {
			t.Errorf("blocks of %d: the pages are not what was written: %v", blockTokens, err)
		}
	}
}

// A copy to a staging buffer is one of the device alone: as many as there are runs of
// blocks, and none of the processor.
func TestStagedCopiesAreTheDevices(t *testing.T) {
	_, control := emulated(t)
	p := newEngine(t, load(t, filepath.Join(familiesDir, "llama")), small()).Pages().(stagingPages)
	memory := stage(t, p, 8*p.Layout().SliceBytes)
	if err := p.Write(0, table(0, 8), memory); err != nil {
		t.Fatal(err)
	}
	before := control.Copied()
	if err := p.Read(0, []kvcache.BlockID{3, 4, 5, 0, 1, 2, 6, 7}, memory); err != nil {
		t.Fatal(err)
	}
	after := control.Copied()
	if after.Copies-before.Copies != 3 || after.Out-before.Out != int64(len(memory)) {
		t.Errorf("from %+v to %+v for %d bytes", before, after, len(memory))
	}
}

// Nobody waits for a staging buffer. What is too large, or one too many, gets none, and what
// came back is lent again.
func TestStageDoesNotWait(t *testing.T) {
	p := newEngine(t, load(t, filepath.Join(familiesDir, "llama")), small()).Pages().(stagingPages)
	if memory, release := p.Stage(1 << 30); memory != nil || release != nil {
		t.Errorf("asked for 1 GiB, got %d bytes", len(memory))
	}
	memories, releases := stageAll(p)
	seen := 0
	for i, m := range memories {
		m[0], m[len(m)-1] = byte(i), byte(i)
		seen += len(m)
	}
	for i, m := range memories {
		if len(m) < 1<<20 || m[0] != byte(i) || m[len(m)-1] != byte(i) {
			t.Fatalf("buffer %d of %d bytes is part of another", i, len(m))
		}
	}
	if seen != 32<<20 {
		t.Errorf("%d buffers have %d bytes", len(memories), seen)
	}
	if err := p.Read(0, table(0, 8), make([]byte, 8*p.Layout().SliceBytes)); err != nil {
		t.Errorf("without a buffer: %v", err)
	}
	for _, release := range releases {
		release()
	}
	memories, releases = stageAll(p)
	if len(memories)<<20 != seen {
		t.Errorf("%d buffers came back", len(memories))
	}
	for _, release := range releases {
		release()
	}
}

// A buffer that its borrower dropped comes back.
func TestDroppedBuffersComeBack(t *testing.T) {
	p := newEngine(t, load(t, filepath.Join(familiesDir, "llama")), small()).Pages().(stagingPages)
	all, _ := stageAll(p)
	dropped := len(all)
	var back []func()
	for deadline := time.Now().Add(time.Minute); len(back) < dropped; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d buffers came back", len(back), dropped)
		}
		runtime.GC()
		runtime.Gosched()
		_, more := stageAll(p)
		back = append(back, more...)
	}
	for _, release := range back {
		release()
	}
}

// A buffer that is lent when the engine closes stays readable until it is back. Nothing
// else is lent, and nothing is pinned any more.
func TestBuffersOutliveTheEngine(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	p := e.Pages().(stagingPages)
	r := rand.New(rand.NewPCG(1, 1))
	want := random(r, 8*p.Layout().SliceBytes)
	if err := p.Write(0, table(0, 8), want); err != nil {
		t.Fatal(err)
	}
	memory, release := p.Stage(len(want))
	_, dropped := p.Stage(1)
	if err := p.Read(0, table(0, 8), memory[:len(want)]); err != nil {
		t.Fatal(err)
	}
	if err := closeAll(); err != nil {
		t.Fatal(err)
	}
	if live := control.Live(); live != (emulationtest.Live{}) {
		t.Errorf("left: %+v", live)
	}
	if more, _ := p.Stage(1); more != nil {
		t.Error("closed pages lend")
	}
	if err := p.Read(0, table(0, 8), memory[:len(want)]); err == nil {
		t.Error("closed pages are read")
	}
	if !bytes.Equal(memory[:len(want)], want) {
		t.Error("the buffer has other bytes")
	}
	release()
	dropped()
}

// After a copy that failed, the device writes no more to the buffer.
func TestStagedCopyFails(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	p := e.Pages().(stagingPages)
	memory := stage(t, p, 4*p.Layout().SliceBytes)
	apart := []kvcache.BlockID{6, 4, 2, 0} // each a copy of its own
	for _, call := range []string{"cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"} {
		control.Fail(call, map[bool]int{true: 2}[call == "cuMemcpyDtoHAsync_v2"], outOfMemory)
		if err := p.Read(0, apart, memory); err == nil || errors.Is(err, engine.ErrDeviceLost) {
			t.Errorf("%s fails: %v", call, err)
		}
		if live := control.Live(); live.Pending != 0 {
			t.Errorf("%s fails: %d operations are left", call, live.Pending)
		}
		if err := p.Read(0, apart, memory); err != nil {
			t.Errorf("%s failed before: %v", call, err)
		}
	}
	control.Lose(illegalAddress)
	if err := p.Read(0, apart, memory); !errors.Is(err, engine.ErrDeviceLost) {
		t.Errorf("on a lost device: %v", err)
	}
	if memory, _ := p.Stage(1); memory != nil {
		t.Error("pages of a lost device lend staging buffers")
	}
	_ = closeAll() // the driver's errors do not matter any more
	memory[0] = 1  // still there
}

// Where the driver pins no memory but its own, copies go another way.
func TestWithoutStaging(t *testing.T) {
	path, control := emulated(t)
	control.Fail("cuMemHostRegister_v2", 0, outOfMemory)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	p := e.Pages().(stagingPages)
	if memory, _ := p.Stage(1); memory != nil {
		t.Error("there are staging buffers")
	}
	want := random(rand.New(rand.NewPCG(1, 1)), 8*p.Layout().SliceBytes)
	got := make([]byte, len(want))
	if err := errors.Join(p.Write(0, table(0, 8), want), p.Read(0, table(0, 8), got)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what is read is not what was written: %v", err)
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
	if live := control.Live(); live != (emulationtest.Live{}) {
		t.Errorf("left: %+v", live)
	}
}

// Engines close while buffers are lent, filled and dropped.
func TestStagingBesideTheEnd(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, small())
	if err != nil {
		t.Fatal(err)
	}
	p := e.Pages().(stagingPages)
	var all sync.WaitGroup
	begun := make(chan struct{}, 8)
	for i := range 8 {
		all.Go(func() {
			for round := 0; ; round++ {
				bytes := 2 * p.Layout().SliceBytes
				memory, release := p.Stage(bytes)
				if memory == nil {
					memory, release = make([]byte, bytes), func() {}
				}
				memory[0] = byte(i)
				err := errors.Join(p.Write(0, table(i, 1), memory[:bytes/2]), p.Read(0, table(i, 1), memory[:bytes/2]))
				if err == nil && memory[0] != byte(i) {
					t.Error("a buffer is lent twice")
				}
				if round == 3 {
					begun <- struct{}{}
				}
				if err != nil {
					release()
					return // closed
				}
				if round%5 != 0 { // else dropped
					release()
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if live := control.Live(); live != (emulationtest.Live{}) {
		t.Errorf("left: %+v", live)
	}
}
