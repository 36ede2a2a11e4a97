package simulated

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// kernelTimer waits by a timer of the kernel that the runtime's poller watches
// like a socket: it is some tens of µs late instead of up to a millisecond, and holds no
// thread, so that hundreds of engines can wait at once.
type kernelTimer struct {
	file *os.File
	fd   int // of file, which must stay reachable while it is used
}

// newPreciseSleeper makes a sleeper that is as exact as the system allows.
func newPreciseSleeper() (sleeper, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &kernelTimer{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}, nil
}

// past is a deadline that has passed.
func past() time.Time { return time.Unix(1, 0) }

func (k *kernelTimer) wait(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(k.fd, 0, &spec, nil); err != nil {
		return fmt.Errorf("set a timer: %w", err)
	}
	interrupted := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = k.file.SetReadDeadline(past()) // fails on a closed file only
	})
	var expirations [8]byte
	_, err := k.file.Read(expirations[:])
	if !release() { // the context has ended: undo what its end did
		<-interrupted
		_ = k.file.SetReadDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	}
	return fmt.Errorf("wait for a timer: %w", err)
}

func (k *kernelTimer) close() error { return k.file.Close() }
