package serving

import (
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// eventLog holds the events of a request's answer. One goroutine at a time appends; any number
// read, each at its own pace and from its own start. The log drops events that were read, unless
// the request can be resumed, and packs those that readers are far behind. logMemory counts what
// it takes.
type eventLog struct {
	memory *logMemory
	tenant string
	// overflow is called once, without a lock, if the log was cut off because it took too
	// much memory. Its argument is the status that readers get.
	overflow func(error)

	mu       sync.Mutex
	keeps    bool      // all events, for readers that come back
	asleep   []*reader // readers that wait for the next event
	entries  []entry
	head     int          // index of the first entry that is not dropped
	first    int          // number of the event at head
	reached  int          // the largest number of an event that a reader asked for
	bytes    atomic.Int64 // memory of the entries; changes under mu
	kept     atomic.Bool  // the bytes count as kept, not as unread; changes under mu
	tokens   int          // generated so far
	ended    bool
	released bool  // there are no readers any more
	err      error // how the log ended; nil after Finished
}

// reader reads a log. The log's mu guards its fields.
type reader struct {
	wake chan struct{} // holds one token when there may be an event
	next int           // number of the event that it reads next
	over bool          // the log has ended, as of its last read
	// now sends an event at once, unless that could block, and returns whether it did. It is
	// called while the reader is asleep. Nil: the reader sends all events itself.
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
	default: // it will look anyway
	}
}

// entry is one event, as a message or encoded.
type entry struct {
	event  *inferencev1.GenerateEvent
	packed []byte
}

const (
	// packBehind is how many events readers may be behind before the log packs further ones:
	// an event with 20 alternatives takes 2.6 kB, and 0.4 kB packed.
	packBehind = 32
	// packedBytes is the memory of a packed event beside its bytes.
	packedBytes = 48
)

func newEventLog(memory *logMemory, tenant string, keeps bool, overflow func(error)) *eventLog {
	l := &eventLog{memory: memory, tenant: tenant, keeps: keeps, overflow: overflow}
	memory.add(l)
	return l
}

// append adds an event: Accepted, a TokenDelta for each token, or Finished. A log that was
// cut off or released ignores it. If kept is false, the caller may reuse the event.
func (l *eventLog) append(event *inferencev1.GenerateEvent) (kept bool) {
	l.mu.Lock()
	if n := event.GetTokens(); n != nil {
		l.tokens = int(event.GetOffset()) + len(n.GetTokenIds())
	}
	if l.ended || l.released || l.handOver(event) {
		l.mu.Unlock()
		return false
	}
	e := entry{event: event}
	if l.unread() >= packBehind {
		e = packed(event)
	}
	l.entries = append(l.entries, e)
	l.count(e.bytes())
	over := l.bytes.Load() > l.memory.mostPerLog && len(l.entries)-l.head > 1 // nobody could read a single one any sooner
	l.wake()
	l.mu.Unlock()
	switch {
	case over:
		l.memory.cutOff.WithLabelValues("request").Inc()
		l.cut(l.tooLarge())
	default:
		l.memory.relieve()
	}
	return true
}

// handOver gives a token to the only reader, if that waits for it and can send it at once. The
// token then skips the log, and no goroutine has to wake. The caller holds mu.
func (l *eventLog) handOver(event *inferencev1.GenerateEvent) bool {
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

// unread is the number of events that no reader has asked for. The caller holds mu.
func (l *eventLog) unread() int { return l.first + len(l.entries) - l.head - l.reached }

// count adds to the log's memory. The caller holds mu.
func (l *eventLog) count(bytes int64) {
	l.bytes.Add(bytes)
	l.memory.count(l.kept.Load(), bytes)
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

// release drops everything, when no reader is left or can come back.
func (l *eventLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	l.drop(len(l.entries) - l.head)
	l.memory.remove(l)
}

// keep counts the log's memory as kept for readers that may come back, or no longer.
func (l *eventLog) keep(kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept == l.kept.Load() || l.released {
		return
	}
	l.memory.count(!kept, -l.bytes.Load())
	l.kept.Store(kept)
	l.memory.count(kept, l.bytes.Load())
}

// wake rouses the readers that are asleep. The caller holds mu.
func (l *eventLog) wake() {
	for _, r := range l.asleep {
		r.rouse()
	}
	clear(l.asleep)
	l.asleep = l.asleep[:0]
}

// read returns the reader's next event, or whether and how the log has ended. If there is
// neither, the reader is asleep until it is roused. A reader that asks for an event has no
// more use for those before it.
func (l *eventLog) read(r *reader) (event *inferencev1.GenerateEvent, ended bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readUpTo(r.next)
	r.over = l.ended
	at := r.next - l.first + l.head
	if at < l.head { // the log was cut off, or another reader has read past it
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

// leave removes a reader. Once it has returned, the log calls now of that reader no more.
func (l *eventLog) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asleep = slices.DeleteFunc(l.asleep, func(other *reader) bool { return other == r })
}

// readUpTo drops the events before i, or packs the last of them if the log keeps them. The
// caller holds mu.
func (l *eventLog) readUpTo(i int) {
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

// drop drops the first n events. The caller holds mu.
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

// generated is the number of tokens so far.
func (l *eventLog) generated() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens
}

// lags reports whether readers are far behind.
func (l *eventLog) lags() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unread() >= packBehind
}

// packed encodes an event. If that failed, which it never does, the entry holds the message.
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

// bytes estimates the memory of an event.
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
	for _, of := range [...][]*inferencev1.TokenLogprobs{delta.GetLogprobs(), e.event.GetPromptLogprobs().GetLogprobs()} {
		for _, l := range of {
			n += logprobs + top*int64(len(l.GetTop()))
		}
	}
	return n
}
