package openai

import (
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// route says which workers served an answer, and why.
type route struct {
	Mode    string `json:"mode"`
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	Reason  string `json:"reason"`
}

func routeOf(r *inferencev1.Route) *route {
	if r == nil {
		return nil
	}
	return &route{Mode: api.Name(r.GetMode()), Prefill: r.GetPrefill(), Decode: r.GetDecode(), Reason: r.GetReason()}
}

// timingOf is where the time of an answer went, in milliseconds: the stages, which add up to
// total, and the times of its tokens, by the names of 'tandem generate --json'.
func timingOf(t *inferencev1.Timings) map[string]float64 {
	if t == nil {
		return nil
	}
	milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	out := map[string]float64{
		"ttft": milliseconds(time.Duration(t.GetTtftNs())), "second_token": milliseconds(time.Duration(t.GetSecondTokenNs())),
		"tpot": milliseconds(time.Duration(t.GetTpotNs())), "total": milliseconds(time.Duration(t.GetTotalNs())),
	}
	for stage, took := range api.StagesOf(t) {
		out[api.Stage(stage).String()] = milliseconds(took)
	}
	return out
}
