package sharedpages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Mapping is a receiver's pages in the memory of this process. Only pages that are open can be
// written or read; whoever touches another one by mistake gets a fault. Its methods are safe
// for concurrent use, but no View may be in use when it is shut or closed.
type Mapping struct {
	at     kvcache.PageMap
	memory []byte
	conn   *net.UnixConn

	start    unsafe.Pointer // of what is reserved, in which memory lies
	reserved uintptr

	mu     sync.Mutex
	closed bool
	unit   int      // bytes that are protected together
	open   []uint16 // how often each unit is open
}

// Dial asks the receiver that listens on a socket for its pages, and maps them.
func Dial(ctx context.Context, socket string, r Request, layout kvcache.Layout) (*Mapping, error) {
	dialled, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, err
	}
	conn := dialled.(*net.UnixConn) //nolint:errcheck,forcetypeassert // it is what DialContext makes
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	m, err := ask(conn, r, layout)
	if !stop() {
		<-interrupted // it ends before decline sets another deadline
		if err == nil {
			_ = m.munmap()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		decline(conn)
		return nil, err
	}
	m.conn = conn
	return m, nil
}

// ask asks for the pages and maps them.
func ask(conn *net.UnixConn, r Request, layout kvcache.Layout) (*Mapping, error) {
	file, g, err := request(conn, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the mapping keeps what it needs
	return newMapping(file, g, layout)
}

// decline tells the receiver that this process has not mapped its pages, whether or not it was
// given them. First it reads an answer that has come and lets no other come: where something is
// left unread, the end of the connection overtakes the last word.
func decline(conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // whatever was set before
	_ = conn.CloseRead()
	for b := make([]byte, 1); ; {
		if _, err := conn.Read(b); err != nil {
			break
		}
	}
	leave(conn)
}

// leave tells the receiver that this process has not, or no longer, mapped its pages.
func leave(conn *net.UnixConn) {
	_, _ = conn.Write([]byte(unmapped)) // a receiver that is gone needs no word
	_ = conn.Close()
}

func request(conn *net.UnixConn, r Request) (*os.File, grant, error) {
	if _, err := conn.Write(r.append(nil)); err != nil {
		return nil, grant{}, err
	}
	answer, rights := make([]byte, maxRefusalBytes), make([]byte, unix.CmsgSpace(4))
	n, more, _, _, err := conn.ReadMsgUnix(answer, rights)
	if err != nil {
		return nil, grant{}, err
	}
	file, err := received(rights[:more])
	if err != nil {
		return nil, grant{}, err
	}
	g, err := parseAnswer(answer[:n])
	if err == nil && file == nil {
		err = errors.New("the receiver passed no descriptor")
	}
	if err != nil && file != nil {
		_ = file.Close()
	}
	return file, g, err
}

// received is the descriptor that came with a message, nil if there was none.
func received(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds { // two fit, since what is said of them is padded
			_ = unix.Close(fd)
		}
		return nil, errors.Join(err, errMalformed)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "receiver's pages"), nil
}

// maxBytes bounds what is mapped.
const maxBytes = 1 << 46

func newMapping(file *os.File, g grant, layout kvcache.Layout) (*Mapping, error) {
	page := uint64(layout.PageBytes())
	if g.pageBytes != page || g.pages == 0 || g.pages > maxBytes/page {
		return nil, fmt.Errorf("the receiver has %d pages of %d bytes, want pages of %d", g.pages, g.pageBytes, page)
	}
	at := kvcache.PageMap{Layout: layout, Blocks: int(g.pages)}
	if err := check(file, at.Bytes()); err != nil {
		return nil, err
	}
	m := &Mapping{at: at, unit: layout.PageBytes()}
	if err := m.mmap(file); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if m.unit%os.Getpagesize() != 0 {
		m.unit = os.Getpagesize()
	}
	m.open = make([]uint16, (len(m.memory)+m.unit-1)/m.unit)
	return m, nil
}

// hugeBytes is the size of a huge page. The file may have some, which a mapping keeps only if it
// is aligned to them.
const hugeBytes = 2 << 20

// mmap maps the file, nothing of it accessible.
func (m *Mapping) mmap(file *os.File) error {
	size := uintptr(m.at.Bytes())
	m.reserved = size + hugeBytes
	reserved, err := unix.MmapPtr(-1, 0, nil, m.reserved, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	m.start = reserved
	start := unsafe.Add(reserved, -uintptr(reserved)%hugeBytes)
	if _, err := unix.MmapPtr(int(file.Fd()), 0, start, size, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return errors.Join(err, m.munmap())
	}
	m.memory = unsafe.Slice((*byte)(start), size)
	// Hints both: large copies, and children that would keep the pages.
	_ = unix.Madvise(m.memory, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(m.memory, unix.MADV_DONTFORK)
	return nil
}

func (m *Mapping) munmap() error { return unix.MunmapPtr(m.start, m.reserved) }

// check refuses a file that has too few bytes, or may come to: to touch those that are missing
// kills a process.
func check(file *os.File, bytes int) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("the receiver's pages are not in a file that can be sealed: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 || info.Size() < int64(bytes) {
		return fmt.Errorf("the receiver's file has %d bytes with seals %#x, want %d that cannot become fewer", info.Size(), seals, bytes)
	}
	return nil
}

// View is the memory of one slice, nil if there is none.
func (m *Mapping) View(layer int, block kvcache.BlockID) []byte {
	if m.at.Check(layer, block) != nil {
		return nil
	}
	return m.at.Slice(m.memory, layer, block)
}

// Open allows that blocks are written. After an error none of them may be.
func (m *Mapping) Open(blocks []kvcache.BlockID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return os.ErrClosed
	}
	for _, b := range blocks {
		if err := m.at.Check(0, b); err != nil {
			return err
		}
	}
	err := m.protect(m.count(blocks, 1), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		err = errors.Join(err, m.protect(m.count(blocks, -1), unix.PROT_NONE))
	}
	return err
}

// Shut ends what Open of the same blocks allowed. After an error some of them may still be
// written.
func (m *Mapping) Shut(blocks []kvcache.BlockID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	return m.protect(m.count(blocks, -1), unix.PROT_NONE)
}

// count notes that blocks were opened or shut, and returns the units that thereby became open or
// shut, in order.
func (m *Mapping) count(blocks []kvcache.BlockID, by int) (changed []int) {
	size := m.at.Layout.PageBytes()
	for _, b := range blocks {
		for u := int(b) * size / m.unit; u*m.unit < (int(b)+1)*size; u++ {
			was := m.open[u]
			m.open[u] = uint16(int(was) + by)
			if (was == 0) != (m.open[u] == 0) {
				changed = append(changed, u)
			}
		}
	}
	slices.Sort(changed)
	return changed
}

// protect changes what may be done to units, which are in order.
func (m *Mapping) protect(units []int, to int) error {
	var failed error
	for len(units) > 0 {
		n := 1
		for n < len(units) && units[n] == units[0]+n {
			n++
		}
		memory := m.memory[units[0]*m.unit : min((units[0]+n)*m.unit, len(m.memory))]
		if err := unix.Mprotect(memory, to); err != nil {
			failed = os.NewSyscallError("mprotect", err)
		}
		units = units[n:]
	}
	return failed
}

// Close unmaps the pages and then tells the receiver.
func (m *Mapping) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	if m.munmap() != nil {
		_ = m.conn.Close() // the receiver waits for the end of this process
		return
	}
	m.memory = nil
	leave(m.conn)
}
