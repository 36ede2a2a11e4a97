// Package trywrite writes to a connection what the operating system takes at once, and never
// waits for the rest.
//
// The servers that send tokens import it, and package identity below TLS. It starts no goroutines.
package trywrite

import (
	"errors"
	"net"
	"runtime"
	"syscall"
)

// pieceBytes is how much one call of the operating system gets at most: what is copied in the time in
// which nobody misses the processor.
const pieceBytes = 16 << 10

// Writer writes to one connection. One goroutine at a time may use it.
type Writer struct {
	conn net.Conn
	raw  syscall.RawConn

	// Of one write; in here since they cost an allocation each otherwise.
	attempt func(fd uintptr) bool
	data    []byte
	n       int
	err     error
}

// New returns a Writer; nil if the connection is none of the operating system, or that is not Linux.
func New(conn net.Conn) *Writer {
	system, is := conn.(syscall.Conn)
	if !is || runtime.GOOS != "linux" {
		return nil
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return nil
	}
	w := &Writer{conn: conn, raw: raw}
	w.attempt = func(fd uintptr) bool {
		for len(w.data) > 0 && w.err == nil {
			var n int
			n, w.err = send(int(fd), w.data[:min(len(w.data), pieceBytes)])
			w.n += n
			w.data = w.data[n:]
		}
		return true // also if it would have to wait
	}
	return w
}

// Write writes the beginning of p, which may be nothing. An error means that nothing more can be
// written, or that the write deadline has passed.
func (w *Writer) Write(p []byte) (n int, err error) {
	w.data, w.n, w.err = p, 0, nil
	err = w.raw.Write(w.attempt)
	w.data = nil
	switch {
	case err != nil: // closed, or past its deadline
		return 0, err
	case w.err != nil && !errors.Is(w.err, syscall.EAGAIN) && !errors.Is(w.err, syscall.EINTR):
		return w.n, &net.OpError{Op: "write", Net: w.conn.LocalAddr().Network(), Source: w.conn.LocalAddr(), Addr: w.conn.RemoteAddr(), Err: w.err}
	}
	return w.n, nil
}
