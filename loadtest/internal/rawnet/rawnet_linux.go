package rawnet

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn returns the same connection with such reads and writes, or conn itself if it is
// not the operating system's. It takes over conn. One goroutine may read and one may
// write at a time.
func Conn(conn net.Conn) net.Conn {
	system, ok := conn.(syscall.Conn)
	if !ok {
		return conn
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return conn
	}
	c := &rawConn{Conn: conn}
	c.in = half{call: unix.SYS_READ, name: "read", wait: raw.Read}
	c.out = half{call: unix.SYS_WRITE, name: "write", wait: raw.Write}
	c.in.try, c.out.try = c.in.attempt, c.out.attempt
	return c
}

// rawConn hides the methods of *net.TCPConn through which others would read directly.
type rawConn struct {
	net.Conn
	in, out half
}

// half is one direction.
type half struct {
	call uintptr
	name string
	wait func(func(fd uintptr) bool) error
	try  func(fd uintptr) bool // attempt, allocated once

	b     []byte
	n     int
	errno unix.Errno
}

// attempt makes the system call; false: it would block.
func (h *half) attempt(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall(h.call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h.b))), uintptr(len(h.b)))
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			h.n, h.errno = int(n), 0
		default:
			h.n, h.errno = 0, errno
		}
		return true
	}
}

// do makes the system call once it does not block.
func (h *half) do(b []byte) (int, error) {
	h.b = b
	err := h.wait(h.try)
	h.b = nil
	if err != nil {
		return 0, err
	}
	if h.errno != 0 {
		return 0, os.NewSyscallError(h.name, h.errno)
	}
	return h.n, nil
}

func (c *rawConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.in.do(b)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (c *rawConn) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := c.out.do(b[written:])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
