package finetimer

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// precise waits for a read of a timerfd with the same deadline on Go's clock. Whichever
// comes first ends it.
type precise struct {
	file  *os.File
	fd    int // of file, which must stay reachable
	spins bool
	read  [8]byte

	mu sync.Mutex
	// waiting: a read is running, which Wake must end. woken: a Wake that no Wait has
	// seen yet.
	waiting, woken bool
}

func newPrecise(spins bool) Timer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil // no timerfd, as in some sandboxes: use the portable timer
	}
	return &precise{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd, spins: spins}
}

// A sleeping processor takes longer to run again than a read takes to return. A wait of
// at least spinGap ends in a loop of spinLead that yields to others, so at most 2% of one
// processor are spent on it.
const (
	spinGap  = 5 * time.Millisecond
	spinLead = 100 * time.Microsecond
)

func (p *precise) Wait(until time.Time) {
	left := time.Until(until)
	p.mu.Lock()
	if p.woken || left <= 0 {
		p.woken = false
		p.mu.Unlock()
		return
	}
	p.waiting = true
	lead := time.Duration(0)
	if p.spins && left > spinGap {
		lead = spinLead
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left - lead))}
	// Setting it also forgets an expiry that was not read.
	_ = unix.TimerfdSettime(p.fd, 0, &spec, nil) // fails only for wrong arguments; Go's clock still runs
	_ = p.file.SetReadDeadline(until.Add(-lead))
	p.mu.Unlock()
	_, err := p.file.Read(p.read[:])
	p.mu.Lock()
	p.waiting = false
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		p.waitWithoutFile(until)
		return
	}
	// At most lead is left here.
	for !p.wasWoken() && lead > 0 && time.Until(until) > 0 {
		runtime.Gosched()
	}
}

// withoutFile is how often a timer whose descriptor cannot be read checks for Wake.
const withoutFile = 10 * time.Millisecond

// waitWithoutFile waits on Go's clock.
func (p *precise) waitWithoutFile(until time.Time) {
	for !p.wasWoken() {
		left := time.Until(until)
		if left <= 0 {
			return
		}
		<-time.NewTimer(min(left, withoutFile)).C
	}
}

// wasWoken reports whether Wake was called since the last Wait, and resets that.
func (p *precise) wasWoken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.woken
	p.woken = false
	return was
}

// past is a deadline in the past.
var past = time.Unix(1, 0)

func (p *precise) Wake() {
	p.mu.Lock()
	p.woken = true
	if p.waiting {
		_ = p.file.SetReadDeadline(past)
	}
	p.mu.Unlock()
}

func (p *precise) Close() error { return p.file.Close() }
