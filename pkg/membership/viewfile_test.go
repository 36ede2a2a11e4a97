package membership_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func lastView(workers int) *controlv1.MembershipView {
	view := &controlv1.MembershipView{Router: "router-1", Policy: &controlv1.Policy{TenantMaxRequests: proto.Uint32(3)}}
	for i := range workers {
		view.Workers = append(view.Workers, record(fmt.Sprintf("decode-%d", i), uint64(i+1)))
	}
	return view
}

func TestViewFileName(t *testing.T) {
	a := membership.ViewFile("f", []string{"http://a:1", "http://b:1"})
	if filepath.Dir(a) != "f" || a != membership.ViewFile("f", []string{"http://b:1/", "http://a:1"}) {
		t.Errorf("the order of endpoints counts: %s", a)
	}
	if a == membership.ViewFile("f", []string{"http://a:1"}) {
		t.Error("two meshes have one file")
	}
}

func TestViewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "of", "nobody", "view")
	if _, err := membership.ReadViewFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, want := range []*controlv1.MembershipView{lastView(500), lastView(2), lastView(1000)} {
		if err := membership.WriteViewFile(path, want); err != nil {
			t.Fatal(err)
		}
		if got, err := membership.ReadViewFile(path); err != nil || !proto.Equal(got, want) {
			t.Fatalf("read %v, %v", got, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// A process that dies while it writes leaves what the next one writes over.
	if err := os.WriteFile(path+".new", bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := membership.ReadViewFile(path); err != nil || len(got.GetWorkers()) != 1000 {
		t.Errorf("half a write took the view away: %v", err)
	}
	if err := membership.WriteViewFile(path, lastView(1)); err != nil {
		t.Fatal(err)
	}
	if got, err := membership.ReadViewFile(path); err != nil || len(got.GetWorkers()) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// Several write one file, and it is whole whenever it is read.
func TestViewFileOfSeveral(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	if err := membership.WriteViewFile(path, lastView(1)); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 30 {
				if err := membership.WriteViewFile(path, lastView(1+(w*31+i)%97)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if view, err := membership.ReadViewFile(path); err != nil || len(view.GetWorkers()) == 0 {
			t.Fatalf("%v, %v", view, err)
		}
	}
}

func TestViewFileThatIsNone(t *testing.T) {
	good, err := membership.EncodeView(lastView(3))
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) []byte { return bytes.Replace(good, []byte(old), []byte(new), 1) }
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"empty":           {nil, "not a view file"},
		"one line":        {[]byte("tandem-view 1"), "not a view file"},
		"nonsense":        {[]byte("nonsense\n{}"), "not a view file"},
		"a long header":   {append(bytes.Repeat([]byte(" "), 1000), good...), "not a view file"},
		"another version": {change("tandem-view 1", "tandem-view 2"), "has version 2"},
		"cut off":         {good[:len(good)-5], "but its header says"},
		"more behind":     {append(bytes.Clone(good), "x"...), "but its header says"},
		"a bit turned":    {change("decode-1", "decode-3"), "checksum"},
		"no JSON":         {[]byte("tandem-view 1 bytes=1 crc32c=00000000\nx"), "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			if view, err := membership.DecodeView(c.data); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("read as %v, %v; want an error with %q", view, err, c.says)
			}
		})
	}
	if _, err := membership.EncodeView(&controlv1.MembershipView{Router: strings.Repeat("x", 33<<20)}); err == nil {
		t.Error("a view of 33 MiB is written")
	}
}

func FuzzDecodeView(f *testing.F) {
	for _, workers := range []int{0, 1, 3} {
		data, err := membership.EncodeView(lastView(workers))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
		f.Add(data[bytes.IndexByte(data, '\n')+1:], true)
	}
	f.Add([]byte("tandem-view 1 bytes=2 crc32c=00000000\n{}"), false)
	f.Fuzz(func(t *testing.T, data []byte, signed bool) {
		if signed { // what is behind the checksum is not trusted either
			data = append(fmt.Appendf(nil, "tandem-view 1 bytes=%d crc32c=%08x\n", len(data), crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), data...)
		}
		view, err := membership.DecodeView(data)
		if err != nil {
			return
		}
		again, err := membership.EncodeView(view)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := membership.DecodeView(again); err != nil || !proto.Equal(view, other) {
			t.Errorf("read again it is %v, %v; want %v", other, err, view)
		}
	})
}
