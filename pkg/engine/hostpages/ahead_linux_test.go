package hostpages_test

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

const mib = 1 << 20

// pagesOf are so many blocks of 1 MiB.
func pagesOf(t *testing.T, blocks int) *hostpages.Pages {
	t.Helper()
	p, err := hostpages.Map(kvtransfertest.Layout(1, mib), blocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if unix.Madvise(p.Bytes()[:unix.Getpagesize()], unix.MADV_POPULATE_WRITE) != nil {
		t.Skip("the kernel takes no memory ahead")
	}
	return p
}

// Memory from a block on is there before it is used, and holds what it held.
func TestMemoryIsTakenAhead(t *testing.T) {
	p := pagesOf(t, 8)
	memory, written := p.Bytes(), bytes.Repeat([]byte{7}, mib)
	copy(memory[2*mib:], written)
	for p.TakePiece(2*mib, 5*mib) {
	}
	if got := p.Taken(); got != 6*mib {
		t.Errorf("it is taken to %d bytes, want to two pieces of 2 MiB after the second MiB", got)
	}
	in := make([]byte, 4*mib/unix.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[2*mib])), 4*mib, uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for i, is := range in {
		if is&1 == 0 {
			t.Fatalf("page %d is not there", i)
		}
	}
	if !bytes.Equal(memory[2*mib:3*mib], written) || !bytes.Equal(memory[3*mib:], make([]byte, 5*mib)) {
		t.Error("it holds something else")
	}
}

// What is used has memory taken beyond it, until Close, and nothing more when all is taken.
func TestUseTakesMemory(t *testing.T) {
	for name, use := range map[string]func(p *hostpages.Pages, block kvcache.BlockID){
		"a step": func(p *hostpages.Pages, block kvcache.BlockID) { p.Reached(block, 1) },
		"a view": func(p *hostpages.Pages, block kvcache.BlockID) { p.View(0, block) },
		"a write": func(p *hostpages.Pages, block kvcache.BlockID) {
			if err := p.Write(0, []kvcache.BlockID{block}, make([]byte, mib)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pagesOf(t, 32)
			use(p, 3)
			p.WaitForTaker()
			if got := p.Taken(); got < 12*mib || got > 14*mib {
				t.Errorf("it is taken to %d bytes after the use of the fourth MiB", got)
			}
			use(p, 31)
			p.WaitForTaker()
			if p.Taken() != 32*mib {
				t.Errorf("it is taken to %d bytes at the last MiB", p.Taken())
			}
			if use(p, 31); p.Taking() {
				t.Error("all is taken, and still more is being taken")
			}
		})
	}
	p := pagesOf(t, 32)
	p.Reached(0, 1)
	if err := p.Close(); err != nil { // while it is being taken
		t.Fatal(err)
	}
	taken := p.Taken()
	if p.Reached(31, 1); p.TakePiece(0, 32*mib) || p.Taken() != taken {
		t.Error("closed pages take memory")
	}
	p = pagesOf(t, 4)
	for _, block := range []kvcache.BlockID{-1, 4} {
		if p.View(0, block) != nil || p.Write(0, []kvcache.BlockID{block}, make([]byte, mib)) == nil {
			t.Errorf("block %d can be used", block)
		}
	}
	if p.WaitForTaker(); p.Taken() != 0 {
		t.Error("blocks that do not exist have memory taken")
	}
}

// Where the kernel takes no memory, that is tried once.
func TestMemoryThatCannotBeTaken(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, 8*mib, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	p := hostpages.Over(kvtransfertest.Layout(1, mib), 8, memory, func() error { return unix.Munmap(memory) })
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if p.TakePiece(0, 8*mib) || p.Taken() < 8*mib {
		t.Errorf("it is tried again from %d bytes on", p.Taken())
	}
	if p.Reached(0, 1); p.Taking() {
		t.Error("it is tried again")
	}
}
