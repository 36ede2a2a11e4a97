package workers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// MembershipView is how old the view of the membership is that the router goes by. It is
// safe for concurrent use.
type MembershipView struct {
	began time.Time

	mu     sync.Mutex
	live   bool
	asOf   time.Time // zero: etcd has never answered
	source membership.Source
}

// NewMembershipView shows its age in metrics; a nil registerer shows it to nobody.
func NewMembershipView(registerer prometheus.Registerer) (*MembershipView, error) {
	m := &MembershipView{began: time.Now()}
	set := metricset.New(registerer)
	set.GaugeFunc("tandem_membership_live", "1 if etcd answers this router, 0 if the router uses its last view.", nil, func() float64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.live {
			return 1
		}
		return 0
	})
	set.GaugeFunc("tandem_membership_view_age_seconds", "Seconds since etcd last listed the workers; 0 while it answers.", nil,
		func() float64 { return m.age(time.Now()).Seconds() })
	return m, set.Err()
}

// Take takes in a view.
func (m *MembershipView) Take(v membership.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live, m.asOf, m.source = v.Live, v.AsOf, v.Source
}

// age is how long etcd has not answered: 0 while it does, since the start if it never
// has.
func (m *MembershipView) age(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.live:
		return 0
	case m.asOf.IsZero():
		return max(now.Sub(m.began), 0)
	}
	return max(now.Sub(m.asOf), 0)
}

// Listing is the workers as operators see them, with how old the view is.
func (m *MembershipView) Listing(workers []*controlv1.WorkerView) *controlv1.ListWorkersResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &controlv1.ListWorkersResponse{Workers: workers, Old: !m.live, Source: string(m.source)}
	if !m.live && !m.asOf.IsZero() {
		out.Age = durationpb.New(max(time.Since(m.asOf), 0))
	}
	return out
}
