package hostpages_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

const (
	layers     = 3
	sliceBytes = 1000
)

func TestPages(t *testing.T) {
	for name, newPages := range map[string]func(kvcache.Layout, int) (*hostpages.Pages, error){"own": hostpages.Map, "shared": hostpages.MapShared} {
		t.Run(name, func(t *testing.T) {
			p, err := newPages(kvtransfertest.Layout(layers, sliceBytes), 4)
			if err != nil {
				if name == "shared" && runtime.GOOS != "linux" {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			if p.Shares() != (name == "shared") || (p.File() != nil) != p.Shares() {
				t.Errorf("shares: %v, file %v", p.Shares(), p.File())
			}
			testPages(t, p)
			if p.File() != nil {
				t.Error("closed pages have a file")
			}
		})
	}
}

func testPages(t *testing.T, p *hostpages.Pages) {
	src := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 2*sliceBytes/8)
	if err := p.Write(1, []kvcache.BlockID{3, 0}, src); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(src))
	if err := p.Read(1, []kvcache.BlockID{3, 0}, got); err != nil || !bytes.Equal(got, src) {
		t.Errorf("read back: %v", err)
	}
	if v := p.View(1, 0); len(v) != sliceBytes || cap(v) != sliceBytes || !bytes.Equal(v, src[sliceBytes:]) {
		t.Error("a view is not the slice")
	}
	for _, where := range []struct {
		layer int
		block kvcache.BlockID
	}{{0, 0}, {2, 0}, {0, 3}, {2, 3}, {1, 1}, {1, 2}} {
		if !bytes.Equal(p.View(where.layer, where.block), make([]byte, sliceBytes)) {
			t.Errorf("layer %d of block %d was written too", where.layer, where.block)
		}
	}
	for _, outside := range []struct {
		layer int
		block kvcache.BlockID
		bytes int
	}{{-1, 0, sliceBytes}, {layers, 0, sliceBytes}, {0, -1, sliceBytes}, {0, 4, sliceBytes}, {0, 0, sliceBytes - 1}, {0, 0, sliceBytes + 1}} {
		blocks := []kvcache.BlockID{outside.block}
		if p.Write(outside.layer, blocks, make([]byte, outside.bytes)) == nil || p.Read(outside.layer, blocks, make([]byte, outside.bytes)) == nil {
			t.Errorf("%+v is taken", outside)
		}
		if outside.bytes == sliceBytes && p.View(outside.layer, outside.block) != nil {
			t.Errorf("%+v has a view", outside)
		}
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if p.Write(0, []kvcache.BlockID{0}, make([]byte, sliceBytes)) == nil || p.Read(0, []kvcache.BlockID{0}, make([]byte, sliceBytes)) == nil || p.View(0, 0) != nil || !p.Closed() {
		t.Error("closed pages can be used")
	}
}
