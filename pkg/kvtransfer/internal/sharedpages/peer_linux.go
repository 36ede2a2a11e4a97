package sharedpages

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is a process that asks for the pages, and may come to have them. One goroutine uses it.
type Peer struct {
	conn    *net.UnixConn
	process *os.File // its pidfd
}

// Accept reads the request of a connection. It refuses processes of other users: one of the
// same user could read and write this process's memory in any case.
func Accept(conn *net.UnixConn, timeout time.Duration) (*Peer, Request, error) {
	process, err := identify(conn)
	if err != nil {
		return nil, Request{}, err
	}
	p := &Peer{conn: conn, process: process}
	request, err := p.read(timeout)
	if err != nil {
		p.Close()
		return nil, Request{}, err
	}
	return p, request, nil
}

func (p *Peer) read(timeout time.Duration) (Request, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return Request{}, err
	}
	b := make([]byte, requestBytes+1)
	n, err := p.conn.Read(b)
	if err != nil {
		return Request{}, err
	}
	return parseRequest(b[:n])
}

// identify returns the pidfd of the process that connected.
func identify(conn *net.UnixConn) (*os.File, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	pidfd := -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case err != nil:
			failed = os.NewSyscallError("getsockopt", err)
			return
		case int(who.Uid) != os.Geteuid():
			failed = fmt.Errorf("user %d asks for pages of user %d", who.Uid, os.Geteuid())
			return
		}
		if pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err != nil { // before Linux 6.5
			pidfd, err = unix.PidfdOpen(int(who.Pid), 0)
		}
		failed = os.NewSyscallError("pidfd_open", err)
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	unix.CloseOnExec(pidfd)
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// Refuse says why the peer does not get the pages.
func (p *Peer) Refuse(why string) {
	_, _ = p.conn.Write([]byte(why[:min(len(why), maxRefusalBytes)])) // it may be gone
}

// Grant passes the file of so many pages. After an error the peer does not have it.
func (p *Peer) Grant(file *os.File, pageBytes, pages int) error {
	answer := grant{pageBytes: uint64(pageBytes), pages: uint64(pages)}.append(nil)
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		_, _, failed = p.conn.WriteMsgUnix(answer, syscall.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, failed)
}

// Wait waits until the peer has the pages no longer: it said so, or its process has ended. Its
// connection's end alone is no sign of that. Stop ends the wait.
func (p *Peer) Wait() error {
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	b := make([]byte, len(unmapped)+1)
	n, err := p.conn.Read(b)
	if err == nil && string(b[:n]) == unmapped || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return p.awaitExit()
}

func (p *Peer) awaitExit() error {
	raw, err := p.process.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, unix.EINTR) {
				failed = os.NewSyscallError("poll", err)
				return ready > 0 || err != nil
			}
		}
	})
	return errors.Join(err, failed)
}

// Stop ends Wait, which then returns an error. It is safe for concurrent use.
func (p *Peer) Stop() {
	past := time.Unix(1, 0)
	_ = p.conn.SetReadDeadline(past)    // neither can fail before Close
	_ = p.process.SetReadDeadline(past) //
}

// Close closes the connection.
func (p *Peer) Close() {
	_ = p.conn.Close()
	_ = p.process.Close()
}
