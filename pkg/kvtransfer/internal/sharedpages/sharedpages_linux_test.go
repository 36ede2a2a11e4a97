package sharedpages_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/sharedpages"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blocks = 8

var asked = sharedpages.Request{Key: 1, Transfer: 2, Secret: 3}

func layoutOf(sliceBytes int) kvcache.Layout { return kvtransfertest.Layout(2, sliceBytes) }

func pagesOf(t *testing.T, layout kvcache.Layout) *hostpages.Pages {
	t.Helper()
	pages, err := hostpages.MapShared(layout, blocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
	})
	return pages
}

// dialled is both ends of a mapping.
type dialled struct {
	peer    *sharedpages.Peer
	request sharedpages.Request
	mapping *sharedpages.Mapping
	err     error
}

// dial asks for a file, as a sender whose pages have a layout.
func dial(t *testing.T, layout kvcache.Layout, answer func(*sharedpages.Peer)) dialled {
	t.Helper()
	return dialWithin(t.Context(), t, layout, func(_ *net.UnixConn, p *sharedpages.Peer) { answer(p) })
}

func dialWithin(ctx context.Context, t *testing.T, layout kvcache.Layout, answer func(*net.UnixConn, *sharedpages.Peer)) dialled {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var d dialled
	served := make(chan error, 1)
	go func() {
		conn, err := listener.AcceptUnix()
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			if d.peer, d.request, err = sharedpages.Accept(conn, time.Minute); err == nil {
				answer(conn, d.peer)
			}
		}
		served <- err
	}()
	d.mapping, d.err = sharedpages.Dial(ctx, path, asked, layout)
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.peer.Close)
	return d
}

func granting(t *testing.T, file *os.File, pageBytes, pages int) func(*sharedpages.Peer) {
	return func(p *sharedpages.Peer) {
		if err := p.Grant(file, pageBytes, pages); err != nil {
			t.Error(err)
		}
	}
}

// faults reports whether touching memory is a fault.
func faults(touch func()) (is bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { is = recover() != nil }()
	touch()
	return false
}

// Both sides see the same bytes. A sender can touch only what is open, also where pages of memory
// hold parts of several blocks.
func TestMapping(t *testing.T) {
	for name, sliceBytes := range map[string]int{"blocks of whole pages": os.Getpagesize(), "small blocks": 100, "odd blocks": 3000} {
		t.Run(name, func(t *testing.T) {
			layout := layoutOf(sliceBytes)
			pages := pagesOf(t, layout)
			d := dial(t, layout, granting(t, pages.File(), layout.PageBytes(), blocks))
			if d.err != nil || d.request != asked {
				t.Fatalf("%v, asked for %+v", d.err, d.request)
			}
			m := d.mapping
			if m.View(2, 0) != nil || m.View(0, blocks) != nil || m.View(0, -1) != nil {
				t.Error("slices that do not exist have a view")
			}
			// As far apart as no page of memory is long.
			first, last := m.View(1, 0), m.View(1, blocks-1)
			open := []kvcache.BlockID{blocks - 1, 0}
			for range 2 {
				if !faults(func() { first[0] = 1 }) {
					t.Error("a block that is not open can be written")
				}
				if err := m.Open(open); err != nil {
					t.Fatal(err)
				}
				if faults(func() { copy(first, "first"); copy(last, "last") }) {
					t.Error("open blocks cannot be written")
				}
				if err := m.Shut(open[:1]); err != nil {
					t.Fatal(err)
				}
				if faults(func() { first[0] = 'F' }) {
					t.Error("the block that is still open cannot be written")
				}
				if err := m.Shut(open[1:]); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.HasPrefix(pages.View(1, 0), []byte("First")) || !bytes.HasPrefix(pages.View(1, blocks-1), []byte("last")) {
				t.Error("the receiver does not see what was written")
			}
			if err := m.Open([]kvcache.BlockID{0, blocks}); err == nil || !faults(func() { first[0] = 1 }) {
				t.Errorf("a block that does not exist is opened: %v", err)
			}
			m.Close()
			m.Close()
			if err := m.Open(open); !errors.Is(err, os.ErrClosed) || m.Shut(open) != nil {
				t.Errorf("open after the end: %v", err)
			}
			if err := d.peer.Wait(); err != nil {
				t.Errorf("the end of the mapping: %v", err)
			}
		})
	}
}

// What a receiver might pass that would harm the sender, or is of no use, is not mapped, and the
// receiver is told.
func TestWhatIsNotMapped(t *testing.T) {
	layout := layoutOf(os.Getpagesize())
	pages := pagesOf(t, layout)
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(int64(blocks * layout.PageBytes())); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file             *os.File
		pageBytes, pages int
		want             string
	}{
		"pages of another size":     {pages.File(), layout.PageBytes() / 2, blocks, "want pages of"},
		"no pages":                  {pages.File(), layout.PageBytes(), 0, "want pages of"},
		"more pages than there are": {pages.File(), layout.PageBytes(), blocks + 1, "cannot become fewer"},
		"more than can be":          {pages.File(), layout.PageBytes(), 1 << 60, "want pages of"},
		"a file that can shrink":    {plain, layout.PageBytes(), blocks, "seal"},
	} {
		t.Run(name, func(t *testing.T) {
			d := dial(t, layout, granting(t, c.file, c.pageBytes, c.pages))
			if d.err == nil || !strings.Contains(d.err.Error(), c.want) {
				t.Errorf("mapped: %v, want %q", d.err, c.want)
			}
			isTold(t, d.peer)
		})
	}
	d := dial(t, layout, func(p *sharedpages.Peer) { p.Refuse("not today") })
	if d.err == nil || !strings.Contains(d.err.Error(), "not today") {
		t.Errorf("refused with %v", d.err)
	}
}

// isTold checks that the receiver hears that its pages are not mapped.
func isTold(t *testing.T, peer *sharedpages.Peer) {
	t.Helper()
	late := time.AfterFunc(10*time.Second, peer.Stop)
	defer late.Stop()
	if err := peer.Wait(); err != nil {
		t.Errorf("the receiver is not told: %v", err)
	}
}

// So it is where no descriptor comes, as to a sender that has too many files open.
func TestNoDescriptor(t *testing.T) {
	d := dialWithin(t.Context(), t, layoutOf(100), func(conn *net.UnixConn, _ *sharedpages.Peer) {
		if _, err := conn.Write([]byte("tandemkv0123456789abcdef")); err != nil {
			t.Error(err)
		}
	})
	if d.err == nil || !strings.Contains(d.err.Error(), "no descriptor") {
		t.Errorf("mapped without a descriptor: %v", d.err)
	}
	isTold(t, d.peer)
}

// A connection that ends without a word says nothing of the mapping: only the end of the process
// does, or that of the receiver.
func TestSilentEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	address := &net.UnixAddr{Name: path, Net: "unixpacket"}
	listener, err := net.ListenUnix("unixpacket", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, last := range []string{"", "something else"} {
		client, err := net.DialUnix("unixpacket", nil, address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write(append([]byte("tandemkv"), make([]byte, 24)...)); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		peer, _, err := sharedpages.Accept(conn, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte(last)); last != "" && err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		ended := make(chan error, 1)
		go func() { ended <- peer.Wait() }()
		peer.Stop()
		if err := <-ended; err == nil {
			t.Error("the end of a connection counts for the end of a mapping")
		}
		peer.Close()
	}
	client, err := net.DialUnix("unixpacket", nil, address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := sharedpages.Accept(conn, time.Minute); err == nil {
		t.Error("a request that is none is taken")
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // nobody accepts
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := sharedpages.Dial(ctx, path, asked, layoutOf(100)); err == nil {
		t.Error("nobody answers, and it is mapped")
	}
}

// So it is where the answer comes as the context ends.
func TestAnswerAfterTheContext(t *testing.T) {
	layout := layoutOf(os.Getpagesize())
	pages := pagesOf(t, layout)
	for range 20 { // the answer is read, or is not
		ctx, cancel := context.WithCancel(t.Context())
		d := dialWithin(ctx, t, layout, func(_ *net.UnixConn, p *sharedpages.Peer) {
			cancel()
			_ = p.Grant(pages.File(), layout.PageBytes(), blocks) // the sender may be gone
		})
		if !errors.Is(d.err, context.Canceled) {
			t.Fatalf("mapped after the end of the context: %v", d.err)
		}
		isTold(t, d.peer)
	}
}

// Who passes two descriptors shares no pages, and neither of them stays open.
func TestTwoDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	passed := make(chan error, 1)
	go func() {
		conn, err := listener.AcceptUnix()
		if err == nil {
			fd := int(write.Fd())
			_, _, err = conn.WriteMsgUnix([]byte("tandemkv0123456789abcdef"), syscall.UnixRights(fd, fd), nil)
			err = errors.Join(err, write.Close(), conn.Close())
		}
		passed <- err
	}()
	if _, err := sharedpages.Dial(t.Context(), path, asked, layoutOf(100)); err == nil {
		t.Error("they are mapped")
	}
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	if n, err := read.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // which waits while one is open
		t.Errorf("%d, %v", n, err)
	}
}
