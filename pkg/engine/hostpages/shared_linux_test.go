package hostpages_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

// Who maps the file sees the pages, and cannot change its size.
func TestSharedFile(t *testing.T) {
	p, err := hostpages.MapShared(kvtransfertest.Layout(layers, sliceBytes), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	file := p.File()
	other, err := unix.Mmap(int(file.Fd()), 0, len(p.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(other); err != nil {
			t.Error(err)
		}
	}()
	copy(other[layers*sliceBytes+2*sliceBytes:], "layer 2 of block 1")
	if got := string(p.View(2, 1)[:18]); got != "layer 2 of block 1" {
		t.Errorf("the slice holds %q", got)
	}
	for _, size := range []int64{0, 1 << 20} {
		if err := file.Truncate(size); err == nil {
			t.Errorf("its size can be changed to %d", size)
		}
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("it can be sealed against writing")
	}
}

// Shared memory that huge pages fit into is zero and can be written, to the last byte.
func TestSharedHugePages(t *testing.T) {
	const hugeBytes = 2 << 20
	blocks := 2*hugeBytes/(layers*sliceBytes) + 1
	p, err := hostpages.MapShared(kvtransfertest.Layout(layers, sliceBytes), blocks)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	p.Collapse()
	if taken := p.Taken(); taken != 0 && taken != 2*hugeBytes { // 0: the kernel has no huge pages
		t.Errorf("%d bytes count as taken, want those in two huge pages, or none", taken)
	}
	if !bytes.Equal(p.Bytes(), make([]byte, blocks*layers*sliceBytes)) {
		t.Error("it is not zero")
	}
	last := p.View(layers-1, kvcache.BlockID(blocks-1))
	copy(last, "written")
	got := make([]byte, 7)
	if _, err := p.File().ReadAt(got, int64(len(p.Bytes())-len(last))); err != nil || string(got) != "written" {
		t.Errorf("the file holds %q: %v", got, err)
	}
}
