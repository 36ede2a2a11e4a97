package diskspace_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/diskspace"
)

func TestAvailable(t *testing.T) {
	for _, c := range []struct {
		name string
		stat unix.Statfs_t
		want int64
	}{
		{"a local disk", unix.Statfs_t{Bavail: 1000, Bsize: 4096, Frsize: 4096}, 4096e3},
		{"best read in larger pieces", unix.Statfs_t{Bavail: 1000, Bsize: 1 << 20, Frsize: 4096}, 4096e3},
		{"no fragments", unix.Statfs_t{Bavail: 1000, Bsize: 4096}, 4096e3},
		{"full for this user", unix.Statfs_t{Bfree: 1000, Bsize: 4096, Frsize: 4096}, 0},
	} {
		if got := diskspace.Available(&c.stat); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}

func TestFree(t *testing.T) {
	if free, err := diskspace.Free(t.TempDir()); err != nil || free <= 0 {
		t.Errorf("%d bytes, %v", free, err)
	}
	if _, err := diskspace.Free("/nowhere/at/all"); err == nil {
		t.Error("a folder that is not there has a disk")
	}
}
