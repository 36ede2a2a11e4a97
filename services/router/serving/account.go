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

// account is what all event logs take together: those that are being read, and those
// that are kept for readers that may come back. Its mu is never held with a log's.
type account struct {
	perLog, most int64
	ended        *prometheus.CounterVec // by why: request, all

	unread, kept atomic.Int64

	mu   sync.Mutex
	logs map[*eventLog]struct{}
}

// newAccount makes the metrics of what answers take.
func newAccount(c Config, set *metricset.Set) *account {
	a := &account{perLog: int64(c.UnreadRequest), most: int64(c.UnreadMemory), logs: make(map[*eventLog]struct{})}
	a.ended = set.Counters("tandem_router_unread_ended_total", "Answers cut off because clients did not read them, by the limit that was full: request (of one answer) or all (of all answers).", "full", "request", "all")
	set.GaugeFunc("tandem_router_unread_bytes", "Bytes of answers that clients have not read yet, and of running answers that can be resumed.", nil,
		func() float64 { return float64(a.unread.Load()) })
	set.GaugeFunc("tandem_router_kept_bytes", "Bytes of finished answers that can be resumed.", nil,
		func() float64 { return float64(a.kept.Load()) })
	return a
}

func (a *account) add(l *eventLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.logs[l] = struct{}{}
}

func (a *account) remove(l *eventLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.logs, l)
}

// count adds to one of the sums.
func (a *account) count(kept bool, bytes int64) {
	if kept {
		a.kept.Add(bytes)
	} else {
		a.unread.Add(bytes)
	}
}

// relieve cuts off the largest logs until what is unread is within its bound. Its
// caller holds no lock.
func (a *account) relieve() {
	for a.unread.Load() > a.most {
		largest := a.largest()
		if largest == nil {
			return
		}
		a.ended.WithLabelValues("all").Inc()
		largest.cut(rpc.Error(codes.ResourceExhausted, api.ReasonUnread,
			fmt.Sprintf("unread answers fill the %s set aside for them, and this one takes the most: read answers as they arrive", size(a.most)), time.Second))
	}
}

// largest is the log with the most that is not kept; nil: none has any.
func (a *account) largest() *eventLog {
	a.mu.Lock()
	logs := slices.Collect(maps.Keys(a.logs))
	a.mu.Unlock()
	var largest *eventLog
	var most int64
	for _, l := range logs {
		l.mu.Lock()
		if !l.kept && l.bytes > most {
			largest, most = l, l.bytes
		}
		l.mu.Unlock()
	}
	return largest
}

// tooMuch is the status of a request whose log takes more than one may.
func (a *account) tooMuch() error {
	return rpc.Error(codes.ResourceExhausted, api.ReasonUnread,
		fmt.Sprintf("the unread or resumable part of this answer exceeds %s: read it as it arrives, or ask for fewer tokens", size(a.perLog)), 0)
}

func size(bytes int64) string {
	s := bytesize.Size(bytes)
	return s.String()
}
