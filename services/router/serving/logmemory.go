package serving

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// logMemory counts the memory of all event logs: of those that are being read, and of those that are
// kept for readers that may come back. Beside them it counts vectors that are being computed, which have
// a bound of their own. Nobody holds mu and the lock of a log at the same time.
type logMemory struct {
	mostPerLog, mostUnread, mostVectors int64
	cutOff                              *prometheus.CounterVec // by the limit that was full: request, all

	unread, kept, vectors atomic.Int64

	mu   sync.Mutex
	logs map[*eventLog]struct{}
}

// newLogMemory makes the metrics of what answers take.
func newLogMemory(c Config, set *metricset.Set) *logMemory {
	m := &logMemory{mostPerLog: int64(c.UnreadRequest), mostUnread: int64(c.UnreadMemory), mostVectors: int64(c.UnreadMemory) / 2, logs: make(map[*eventLog]struct{})}
	m.cutOff = set.Counters("tandem_router_unread_ended_total", "Answers cut off because clients did not read them, by the limit that was full: request (of one answer) or all (of all answers).", "full", "request", "all")
	set.GaugeFunc("tandem_router_unread_bytes", "Bytes of answers that clients have not read yet, and of running answers that can be resumed.", nil,
		func() float64 { return float64(m.unread.Load()) })
	set.GaugeFunc("tandem_router_vector_bytes", "Bytes of vectors that are being computed.", nil,
		func() float64 { return float64(m.vectors.Load()) })
	set.GaugeFunc("tandem_router_kept_bytes", "Bytes of finished answers that can be resumed.", nil,
		func() float64 { return float64(m.kept.Load()) })
	return m
}

func (m *logMemory) add(l *eventLog) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logs[l] = struct{}{}
}

func (m *logMemory) remove(l *eventLog) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.logs, l)
}

// count adds to one of the sums.
func (m *logMemory) count(kept bool, bytes int64) {
	if kept {
		m.kept.Add(bytes)
	} else {
		m.unread.Add(bytes)
	}
}

// relieve cuts off the largest logs of the tenants with the most until what is unread is within its bound. Its
// caller holds no lock.
func (m *logMemory) relieve() {
	for m.unread.Load() > m.mostUnread {
		largest := m.largest()
		if largest == nil {
			return
		}
		m.cutOff.WithLabelValues("all").Inc()
		largest.cut(rpc.Error(codes.ResourceExhausted, api.ReasonUnread,
			fmt.Sprintf("unread answers, and those that can be resumed, fill the %s set aside for them, this one's tenant takes the most, and it the most of that: %s", size(m.mostUnread), largest.advice()), time.Second))
	}
}

// vectorBytes is about what a vector of an answer takes beside its numbers, of 4 bytes each.
const vectorBytes = 128

// takeVectors takes memory for so many vectors, before they are computed, until release. The error is a
// status.
func (m *logMemory) takeVectors(vectors, numbers int) (release func(), err error) {
	each, most := vectorBytes+4*int64(numbers), m.mostVectors
	bytes := each * int64(vectors)
	if bytes > most {
		return nil, rpc.InvalidArgument("inputs", fmt.Sprintf("has %d texts, and their vectors of %d numbers need more than the %s that this router sets aside for vectors: give at most %d", vectors, numbers, size(most), most/each))
	}
	for {
		taken := m.vectors.Load()
		if taken+bytes > most {
			return nil, rpc.Error(codes.ResourceExhausted, api.ReasonVectorMemory, fmt.Sprintf("the vectors of other calls fill the %s set aside for them; retry when one has ended", size(most)), time.Second)
		}
		if m.vectors.CompareAndSwap(taken, taken+bytes) {
			return func() { m.vectors.Add(-bytes) }, nil
		}
	}
}

// largest is the log with the most that is not kept, of the tenant whose logs take the most, so that a
// tenant with many small ones does not have another's cut off; nil: none has any. It takes no log's lock:
// one that hands over a token may hold it for long.
func (m *logMemory) largest() *eventLog {
	m.mu.Lock()
	logs := slices.Collect(maps.Keys(m.logs))
	m.mu.Unlock()
	of := make(map[string]struct {
		sum, most int64
		largest   *eventLog
	})
	var largest *eventLog
	var most int64
	for _, l := range logs {
		bytes := l.bytes.Load()
		if bytes == 0 || l.kept.Load() {
			continue
		}
		its := of[l.tenant]
		if its.sum += bytes; bytes > its.most {
			its.most, its.largest = bytes, l
		}
		if of[l.tenant] = its; its.sum > most {
			most = its.sum
			largest = its.largest
		}
	}
	return largest
}

// tooLarge is the status of a request whose log takes more than one may.
func (l *eventLog) tooLarge() error {
	return rpc.Error(codes.ResourceExhausted, api.ReasonUnread,
		fmt.Sprintf("what is held of this answer exceeds %s: %s", size(l.memory.mostPerLog), l.advice()), 0)
}

// advice is what makes a log smaller.
func (l *eventLog) advice() string {
	if l.keeps {
		return "all of it is held while it can be resumed; ask for fewer tokens, or leave out resumable_for"
	}
	return "read it as it arrives, or ask for fewer tokens"
}

func size(bytes int64) string {
	s := bytesize.Size(bytes)
	return s.String()
}
