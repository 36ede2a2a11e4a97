package hostpages_test

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

// Memory is there before it is used, as far as was asked for, and holds what it held.
func TestMemoryIsTakenAhead(t *testing.T) {
	const block = 1 << 20
	p, err := hostpages.Map(kvtransfertest.Layout(1, block), 8)
	if err != nil {
		t.Fatal(err)
	}
	memory, written := p.Bytes(), bytes.Repeat([]byte{7}, block)
	copy(memory[block:], written)
	for p.TakePiece(3 * block) {
	}
	if got := p.Taken(); got != 4*block {
		t.Errorf("%d bytes are taken, want two pieces of 2 MiB", got)
	}
	in := make([]byte, 4*block/unix.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), 4*block, uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for i, is := range in {
		if is&1 == 0 {
			t.Fatalf("page %d is not there", i)
		}
	}
	if !bytes.Equal(memory[block:2*block], written) || !bytes.Equal(memory[2*block:], make([]byte, 6*block)) {
		t.Error("it holds something else")
	}
	for p.TakePiece(8 * block) {
	}
	if p.Reached(7); p.Taking() {
		t.Error("all is taken, and still a thread is started")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Reached(7)
	if p.TakePiece(8 * block) {
		t.Error("closed pages take memory")
	}
}
