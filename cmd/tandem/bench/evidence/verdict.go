package evidence

import (
	"errors"
	"io"
	"time"

	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// verdict is whether search.Share of the requests of a run meet the SLO. It is often certain long
// before the run is over, above all far from the rate that a search is after.
type verdict struct {
	slo      measure.SLO
	from, to time.Duration // requests count that are due in between, both included
	requests int
	met      int
	missed   int
}

// read reads all that a run sends, and returns it as a source again. Requests have no later turns.
func (v *verdict) read(o drive.Options) (workload.Source, error) {
	v.from, v.to = o.Warmup, o.Warmup+o.Duration
	var all workload.List
	for {
		q, err := o.Source.Next()
		if errors.Is(err, io.EOF) {
			return &all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, q)
		if v.counts(q.Due) {
			v.requests++
		}
	}
}

func (v *verdict) counts(due time.Duration) bool { return due >= v.from && due <= v.to }

// ended takes in a request that has ended, and reports whether the verdict is certain.
func (v *verdict) ended(r *record.Record) bool {
	switch {
	case !v.counts(r.Due):
	case measure.Meets(r, v.slo):
		v.met++
	default:
		v.missed++
	}
	passed, failed := v.certain()
	return passed || failed
}

func (v *verdict) certain() (passed, failed bool) {
	n := float64(v.requests)
	return float64(v.met)/n >= search.Share, float64(v.requests-v.missed)/n < search.Share
}
