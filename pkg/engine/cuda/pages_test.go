package cuda_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// pageBlocks make copies of many parts: of half a buffer each.
const pageBlocks = 600

// lendingPages are what a CUDA engine's pages are.
type lendingPages interface {
	engine.Pages
	engine.Lending
}

// lenders are the pages of two engines that share weights.
func lenders(t *testing.T) (first, second lendingPages) {
	t.Helper()
	w := load(t, filepath.Join(familiesDir, "llama"))
	config := cuda.Config{Blocks: pageBlocks, BlockTokens: 256, MaxBatchTokens: 16, MaxSequences: 1}
	made := func() lendingPages { return newEngine(t, w, config).Pages().(lendingPages) }
	return made(), made()
}

// mixed are all blocks: runs of neighbours, in an order of their own.
func mixed(seed uint64) []kvcache.BlockID {
	random := rand.New(rand.NewPCG(seed, 1))
	var runs [][]kvcache.BlockID
	for first := 0; first < pageBlocks; {
		n := min(1+random.IntN(9), pageBlocks-first)
		runs = append(runs, table(first, n))
		first += n
	}
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	var all []kvcache.BlockID
	for _, r := range runs {
		all = append(all, r...)
	}
	return all
}

func fill(t *testing.T, p engine.Pages, layer int, blocks []kvcache.BlockID, seed uint64) []byte {
	t.Helper()
	data := make([]byte, len(blocks)*p.Layout().SliceBytes)
	random := rand.New(rand.NewPCG(seed, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	if err := p.Write(layer, blocks, data); err != nil {
		t.Fatal(err)
	}
	return data
}

// What is written is read, slices in whatever order, in more parts than a buffer has
// halves, and other slices stay.
func TestPagesInParts(t *testing.T) {
	pages, _ := lenders(t)
	if bytes := pageBlocks * pages.Layout().SliceBytes; bytes < 5*(512<<10) {
		t.Fatalf("%d bytes are too few for many parts", bytes)
	}
	first, second := fill(t, pages, 0, mixed(1), 1), fill(t, pages, 1, mixed(2), 2)
	for layer, want := range [][]byte{first, second} {
		got := make([]byte, len(want))
		if err := pages.Read(layer, mixed(uint64(layer+1)), got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("layer %d is not what was written", layer)
		}
	}
}

// Slices of neighbouring blocks are one copy.
func TestNeighboursAreOneCopy(t *testing.T) {
	_, control := emulated(t)
	pages, _ := lenders(t)
	room := make([]byte, 8*pages.Layout().SliceBytes)
	before := control.Copied()
	if err := pages.Read(1, table(3, 8), room); err != nil {
		t.Fatal(err)
	}
	if err := pages.Write(1, []kvcache.BlockID{9, 10, 11, 12, 4, 5, 6, 7}, room); err != nil {
		t.Fatal(err)
	}
	after := control.Copied()
	if after.Copies-before.Copies != 1+2 || after.Out-before.Out != int64(len(room)) || after.In-before.In != int64(len(room)) {
		t.Errorf("from %+v to %+v for %d bytes each way", before, after, len(room))
	}
}

// What is lent is taken once, within the device, and the lender is told when.
func TestTake(t *testing.T) {
	from, to := lenders(t)
	want := fill(t, from, 1, mixed(1), 1)
	ended := 0
	loan, err := from.Lend(1, mixed(1), func() { ended++ })
	if err != nil {
		t.Fatal(err)
	}
	if ended != 0 || from.Memory() != to.Memory() || from.Memory() == 0 {
		t.Fatalf("ended %d times, memories %#x and %#x", ended, from.Memory(), to.Memory())
	}
	check := func() {}
	if gpu == "" {
		_, control := emulated(t)
		check = func() {
			if copied := control.Copied(); copied.In != 0 || copied.Out != 0 || copied.Within != int64(len(want)) {
				t.Errorf("copied %+v", copied)
			}
		}
	}
	if err := to.Take(loan, 1, mixed(2)); err != nil || ended != 1 {
		t.Fatalf("ended %d times: %v", ended, err)
	}
	check()
	got := make([]byte, len(want))
	if err := to.Read(1, mixed(2), got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was taken is not what was lent: %v", err)
	}
	if err := to.Take(loan, 1, mixed(2)); !errors.Is(err, engine.ErrNotLent) || ended != 1 {
		t.Errorf("taken again: %v, ended %d times", err, ended)
	}
}

// What is lent and taken has to be the same slices; a loan that was recalled or taken
// wrongly is over.
func TestTakeRefuses(t *testing.T) {
	from, to := lenders(t)
	for name, c := range map[string]struct {
		layer  int
		blocks []kvcache.BlockID
	}{
		"another layer": {0, table(0, 4)}, "fewer": {1, table(0, 3)}, "a block that is not": {1, table(pageBlocks-3, 4)}, "a layer that is not": {99, table(0, 4)},
	} {
		ended := 0
		loan, err := from.Lend(1, table(0, 4), func() { ended++ })
		if err != nil {
			t.Fatal(err)
		}
		if err := to.Take(loan, c.layer, c.blocks); err == nil || errors.Is(err, engine.ErrNotLent) || ended != 1 {
			t.Errorf("%s: %v, ended %d times", name, err, ended)
		}
		if err := to.Take(loan, 1, table(0, 4)); !errors.Is(err, engine.ErrNotLent) {
			t.Errorf("%s, and then rightly: %v", name, err)
		}
	}
	ended := 0
	loan, err := from.Lend(1, table(0, 4), func() { ended++ })
	if err != nil {
		t.Fatal(err)
	}
	from.Recall(loan)
	if err := to.Take(loan, 1, table(0, 4)); !errors.Is(err, engine.ErrNotLent) || ended != 1 {
		t.Errorf("after its recall: %v, ended %d times", err, ended)
	}
	if _, err := from.Lend(1, table(pageBlocks-1, 2), func() { t.Error("ended") }); err == nil {
		t.Error("blocks that are not there were lent")
	}
}

// Engines of other weights have another memory, on whatever device.
func TestMemoryIsOfTheWeights(t *testing.T) {
	made := func() lendingPages {
		return newEngine(t, load(t, filepath.Join(familiesDir, "llama")), small()).Pages().(lendingPages)
	}
	first, second := made(), made()
	if first.Memory() == second.Memory() {
		t.Error("two loads of weights have one memory")
	}
	loan, err := first.Lend(0, table(0, 1), func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Take(loan, 0, table(0, 1)); !errors.Is(err, engine.ErrNotLent) {
		t.Errorf("taken in another memory: %v", err)
	}
}

// pair is two engines with weights of their own to close.
func pair(t *testing.T, path string) (w *cuda.Weights, from, to engine.Engine) {
	t.Helper()
	m, err := model.Open(filepath.Join(familiesDir, "llama"), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if w, err = cuda.Load(t.Context(), m, cuda.Config{Driver: path}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*engine.Engine{&from, &to} {
		if *e, err = w.NewEngine(small()); err != nil {
			t.Fatal(err)
		}
	}
	return w, from, to
}

// A loan outlives neither engine: to take what a closed one lent, or into a closed one, is
// an error, and ends the loan.
func TestTakeOfClosed(t *testing.T) {
	path, control := emulated(t)
	for name, closes := range map[string]func(from, to engine.Engine) error{
		"lender": func(from, _ engine.Engine) error { return from.Close() }, "taker": func(_, to engine.Engine) error { return to.Close() },
	} {
		w, from, to := pair(t, path)
		ended := 0
		loan, err := from.Pages().(lendingPages).Lend(0, table(0, 2), func() { ended++ })
		if err != nil {
			t.Fatal(err)
		}
		if err := closes(from, to); err != nil {
			t.Fatal(err)
		}
		if err := to.Pages().(lendingPages).Take(loan, 0, table(2, 2)); err == nil || errors.Is(err, engine.ErrDeviceLost) || ended != 1 {
			t.Errorf("the %s is closed: %v, ended %d times", name, err, ended)
		}
		if err := errors.Join(from.Close(), to.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	}
	if live := control.Live(); live != (emulationtest.Live{}) {
		t.Errorf("left: %+v", live)
	}
}

// A device that is lost, or a copy that fails, fails the taking and ends the loan.
func TestTakeOnALostDevice(t *testing.T) {
	path, control := emulated(t)
	w, from, to := pair(t, path)
	lender, taker := from.Pages().(lendingPages), to.Pages().(lendingPages)
	ended := 0
	lend := func() uint64 {
		loan, err := lender.Lend(0, table(0, 2), func() { ended++ })
		if err != nil {
			t.Fatal(err)
		}
		return loan
	}
	loan := lend()
	control.Fail("cuMemcpy2DAsync_v2", 0, outOfMemory)
	if err := taker.Take(loan, 0, table(2, 2)); err == nil || errors.Is(err, engine.ErrDeviceLost) || ended != 1 {
		t.Errorf("a copy that fails: %v, ended %d times", err, ended)
	}
	if err := taker.Take(lend(), 0, table(2, 2)); err != nil || ended != 2 {
		t.Errorf("the next one: %v, ended %d times", err, ended)
	}
	loan = lend()
	control.Lose(illegalAddress)
	if err := taker.Take(loan, 0, table(2, 2)); !errors.Is(err, engine.ErrDeviceLost) || ended != 3 {
		t.Errorf("on a lost device: %v, ended %d times", err, ended)
	}
	select {
	case <-to.(engine.LossNotifier).Lost():
	default:
		t.Error("nobody who waits is told")
	}
	_, _, _ = from.Close(), to.Close(), w.Close() // the driver's errors do not matter any more
}

// Takes in both directions, copies of the host and the end of both engines do not wait for
// each other.
func TestTakesBesideTheEnd(t *testing.T) {
	path, _ := emulated(t)
	w, first, second := pair(t, path)
	pages := []lendingPages{first.Pages().(lendingPages), second.Pages().(lendingPages)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			from, to := pages[i%2], pages[1-i%2]
			room := make([]byte, 2*from.Layout().SliceBytes)
			for {
				ended := make(chan struct{})
				loan, err := from.Lend(0, table(0, 2), func() { close(ended) })
				if err != nil {
					t.Error(err)
					return
				}
				failed := errors.Join(to.Take(loan, 0, table(4, 2)), to.Read(0, table(2, 2), room))
				<-ended
				if failed != nil {
					return // closed
				}
			}
		})
	}
	for range 20 { // copies of the host let the others go on
		if err := pages[0].Read(0, table(6, 1), make([]byte, pages[0].Layout().SliceBytes)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// Steps go before those of an engine that yields, and both before copies.
func TestPriorities(t *testing.T) {
	_, control := emulated(t)
	w := load(t, filepath.Join(familiesDir, "llama"))
	newEngine(t, w, small())
	before := control.Streams()
	yields := small()
	yields.Yields = true
	newEngine(t, w, yields)
	after := control.Streams()
	if before[5] != 1 || after[5] != 1 || before[2] != 0 || after[2] != 1 || before[0] == 0 || after[0] != 2*before[0] {
		t.Errorf("streams by priority: %v, then %v", before, after)
	}
}
