package serving

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// eventLog is what a request has told its client so far. One goroutine appends, any
// number read at their own pace, each from where it likes. Its account knows what it
// takes: what was read is dropped, unless the request can be resumed, and what nobody
// has read for long is packed.
type eventLog struct {
	account *account
	// overflow is called once, without a lock, if the log was cut off for what it
	// takes; with the status that its readers get.
	overflow func(error)

	mu       sync.Mutex
	keeps    bool      // all events, for readers that come back
	asleep   []*reader // those that have had all there is
	entries  []entry
	head     int   // entries before it were dropped
	first    int   // number of the event at head
	reached  int   // number of the event that a reader asked for last, at most
	bytes    int64 // of the entries
	kept     bool  // which of the account's two sums they are in
	tokens   int   // generated
	ended    bool
	released bool  // nobody reads any more
	err      error // how it ended; nil with a Finished
}

// reader is who reads a log. Its fields are under the log's mu.
type reader struct {
	wake chan struct{} // holds one token when there may be more
	next int           // number of the event that it asks for next
	// now, if it is set, sends an event at once unless that could block, and says whether
	// it did. It is called while the reader is asleep.
	now func(*inferencev1.GenerateEvent) bool
}

func newReader(now func(*inferencev1.GenerateEvent) bool) *reader {
	return &reader{wake: make(chan struct{}, 1), now: now}
}

// rouse wakes the reader if it is asleep, or keeps it from falling asleep. Any goroutine may
// call it.
func (r *reader) rouse() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look
	}
}

// entry is one event, as it is or in protobuf.
type entry struct {
	event  *inferencev1.GenerateEvent
	packed []byte
}

const (
	// packBehind is how many events a reader may be behind before they are packed: an
	// event with 20 alternatives takes 2.6 kB, and 0.4 kB packed.
	packBehind = 32
	// packedBytes is what a packed event takes beside its bytes.
	packedBytes = 48
)

func newEventLog(account *account, keeps bool, overflow func(error)) *eventLog {
	l := &eventLog{account: account, keeps: keeps, overflow: overflow}
	account.add(l)
	return l
}

// append adds an event, Accepted, one TokenDelta a token or Finished. Events of a log
// that was cut off or released go nowhere. It reports whether the log keeps the event, or
// whoever reads it may: otherwise it is the caller's again.
func (l *eventLog) append(event *inferencev1.GenerateEvent) (kept bool) {
	l.mu.Lock()
	if n := event.GetTokens(); n != nil {
		l.tokens = int(event.GetOffset()) + len(n.GetTokenIds())
	}
	if l.ended || l.released || l.hand(event) {
		l.mu.Unlock()
		return false
	}
	e := entry{event: event}
	if l.behind() >= packBehind {
		e = packed(event)
	}
	l.entries = append(l.entries, e)
	l.count(e.bytes())
	over := l.bytes > l.account.perLog
	l.wake()
	l.mu.Unlock()
	switch {
	case over:
		l.account.ended.WithLabelValues("request").Inc()
		l.cut(l.account.tooMuch())
	default:
		l.account.relieve()
	}
	return true
}

// hand hands a token to a reader that waits for it, if that can send it at once. Then the log
// never has it, and neither the goroutine that appends nor the reader's has to wait for the
// other; mu is held.
func (l *eventLog) hand(event *inferencev1.GenerateEvent) bool {
	if l.keeps || len(l.asleep) != 1 || l.head != len(l.entries) || event.GetTokens() == nil {
		return false
	}
	r := l.asleep[0]
	if r.now == nil || r.next != l.first || !r.now(event) {
		return false
	}
	r.next++
	l.first++
	l.reached = r.next
	return true
}

// behind is how many events nobody has asked for; mu is held.
func (l *eventLog) behind() int { return l.first + len(l.entries) - l.head - l.reached }

// count adds to what the log takes; mu is held.
func (l *eventLog) count(bytes int64) {
	l.bytes += bytes
	l.account.count(l.kept, bytes)
}

// end closes the log; err is a status or nil.
func (l *eventLog) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended, l.err = true, err
		l.wake()
	}
}

// cut ends the log with a status and drops what is in it.
func (l *eventLog) cut(err error) {
	l.mu.Lock()
	if l.ended && len(l.entries) == l.head {
		l.mu.Unlock()
		return
	}
	l.ended, l.err = true, err
	l.drop(len(l.entries) - l.head)
	l.wake()
	l.mu.Unlock()
	l.overflow(err)
}

// release drops everything: nobody reads any more, or can come back.
func (l *eventLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	l.drop(len(l.entries) - l.head)
	l.account.remove(l)
}

// keep moves the log among what is kept for readers that may come back, or out of it
// again: then it goes event by event as they are read.
func (l *eventLog) keep(kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept == l.kept || l.released {
		return
	}
	l.account.count(l.kept, -l.bytes)
	l.kept = kept
	l.account.count(l.kept, l.bytes)
}

// wake rouses the readers that are asleep; mu is held.
func (l *eventLog) wake() {
	for _, r := range l.asleep {
		r.rouse()
	}
	clear(l.asleep)
	l.asleep = l.asleep[:0]
}

// read returns the reader's next event if it is there, otherwise whether the log has ended and
// how. If it has not, the reader is asleep until it is roused. A reader that asks for an event
// no longer needs those before it.
func (l *eventLog) read(r *reader) (event *inferencev1.GenerateEvent, ended bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passed(r.next)
	at := r.next - l.first + l.head
	if at < l.head { // it was cut off, or another reader has had it
		return nil, true, l.err
	}
	if at < len(l.entries) {
		r.next++
		event, err = l.entries[at].unpacked()
		return event, err != nil, err
	}
	if !l.ended && !slices.Contains(l.asleep, r) {
		l.asleep = append(l.asleep, r)
	}
	return nil, l.ended, l.err
}

// leave says that a reader reads no more. Nothing is handed to it once that has returned.
func (l *eventLog) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asleep = slices.DeleteFunc(l.asleep, func(other *reader) bool { return other == r })
}

// passed drops the events before i, or packs the last of them if they are kept; mu is
// held.
func (l *eventLog) passed(i int) {
	l.reached = max(l.reached, i)
	if !l.keeps {
		l.drop(min(i-l.first, len(l.entries)-l.head))
		return
	}
	if at := i - 1 - l.first + l.head; at >= l.head && at < len(l.entries) && l.entries[at].event != nil {
		before := l.entries[at].bytes()
		l.entries[at] = packed(l.entries[at].event)
		l.count(l.entries[at].bytes() - before)
	}
}

// drop drops the first n events; mu is held.
func (l *eventLog) drop(n int) {
	for range n {
		l.count(-l.entries[l.head].bytes())
		l.entries[l.head] = entry{}
		l.head++
		l.first++
	}
	switch {
	case l.head == len(l.entries):
		l.entries, l.head = l.entries[:0], 0
	case l.head > 64 && l.head > len(l.entries)/2:
		l.entries = l.entries[:copy(l.entries, l.entries[l.head:])]
		l.head = 0
	}
}

// generated is how many tokens were.
func (l *eventLog) generated() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens
}

// lags says whether readers are far behind.
func (l *eventLog) lags() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.behind() >= packBehind
}

// packed is an event in protobuf; as it is if that fails, which it does not.
func packed(event *inferencev1.GenerateEvent) entry {
	data, err := proto.Marshal(event)
	if err != nil {
		return entry{event: event}
	}
	return entry{packed: data}
}

func (e entry) unpacked() (*inferencev1.GenerateEvent, error) {
	if e.event != nil {
		return e.event, nil
	}
	event := new(inferencev1.GenerateEvent)
	if err := proto.Unmarshal(e.packed, event); err != nil {
		return nil, clienterr.Status(err)
	}
	return event, nil
}

// bytes is about what an event takes in memory.
func (e entry) bytes() int64 {
	if e.event == nil {
		return int64(cap(e.packed)) + packedBytes
	}
	const event, logprobs, top = 320, 128, 112
	n := int64(event)
	if finished := e.event.GetFinished(); finished != nil {
		return 3*event + int64(len(finished.GetText()))
	}
	delta := e.event.GetTokens()
	n += int64(len(delta.GetText()))
	for _, l := range delta.GetLogprobs() {
		n += logprobs + top*int64(len(l.GetTop()))
	}
	return n
}
