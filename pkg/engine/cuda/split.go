package cuda

import "sync"

const (
	// splitBytes is the least that is worth another goroutine: some 10 µs of copying.
	splitBytes = 128 << 10
	// splitHelpers is how many goroutines help to copy at a time, for all copies of pages. One
	// core does not copy as fast as the device.
	splitHelpers = 4
)

// splitter copies memory with several goroutines. It is safe for concurrent use.
type splitter struct{ helpers chan struct{} }

func newSplitter() splitter { return splitter{make(chan struct{}, splitHelpers)} }

// copy copies src to the front of dst, and has helpers for parts of it where some are free.
func (s splitter) copy(dst, src []byte) {
	var parts sync.WaitGroup
	for len(src) >= 2*splitBytes && s.help() {
		to, from := dst[:splitBytes], src[:splitBytes]
		parts.Go(func() {
			copy(to, from)
			<-s.helpers
		})
		dst, src = dst[splitBytes:], src[splitBytes:]
	}
	copy(dst, src)
	parts.Wait()
}

// help reserves a helper if one is free.
func (s splitter) help() bool {
	select {
	case s.helpers <- struct{}{}:
		return true
	default:
		return false
	}
}
