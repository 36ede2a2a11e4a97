package router

import (
	"sync"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// eventLog is what a request has told its client so far. One goroutine appends,
// any number read at their own pace, each from where it likes. It is bounded by
// the model's context: one event for each token.
type eventLog struct {
	mu      sync.Mutex
	events  []*inferencev1.GenerateEvent // Accepted, one TokenDelta a token, Finished
	ended   bool
	err     error         // how it ended; nil with a Finished
	changed chan struct{} // closed at the next change
}

func newEventLog() *eventLog { return &eventLog{changed: make(chan struct{})} }

func (l *eventLog) append(event *inferencev1.GenerateEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
	l.wake()
}

// end closes the log; err is a status or nil.
func (l *eventLog) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended, l.err = true, err
	l.wake()
}

func (l *eventLog) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// read returns event i if it is there, otherwise whether the log has ended and
// how; changed is closed when there may be more.
func (l *eventLog) read(i int) (event *inferencev1.GenerateEvent, ended bool, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i < len(l.events) {
		return l.events[i], false, nil, nil
	}
	return nil, l.ended, l.changed, l.err
}

// tokens is how many tokens were generated.
func (l *eventLog) tokens() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	if len(l.events) > 0 {
		last := l.events[len(l.events)-1]
		n = int(last.GetOffset()) + len(last.GetTokens().GetTokenIds())
	}
	return n
}
