package measure_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

const ms = time.Millisecond

func slo(t *testing.T, text string) measure.SLO {
	t.Helper()
	s, err := measure.ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one is a completed request whose messages came at these times after it was due.
func one(due time.Duration, arrivals ...record.Arrival) *record.Record {
	r := &record.Record{
		Due: due, Dispatched: due + 2*ms, Sent: due + 3*ms, Admitted: due + 5*ms, Outcome: record.Completed,
		PromptTokens: 100, CachedTokens: 40,
	}
	for _, a := range arrivals {
		r.Arrivals = append(r.Arrivals, record.Arrival{At: due + a.At, Tokens: a.Tokens})
		r.OutputTokens += int(a.Tokens)
	}
	r.End = r.Last() + ms
	return r
}

// Every latency of one request, computed by hand: a token after 100 ms, two at once 30 ms
// later, and one 50 ms after those.
func TestLatenciesOfOneRequest(t *testing.T) {
	run := &record.Run{To: time.Second, Records: []*record.Record{
		one(0, record.Arrival{At: 100 * ms, Tokens: 1}, record.Arrival{At: 130 * ms, Tokens: 2}, record.Arrival{At: 180 * ms, Tokens: 1}),
	}}
	s := measure.Summarize(run, measure.Options{})
	type figures struct {
		Count     int64
		Mean, Max float64
	}
	got := map[measure.Latency]figures{}
	for _, d := range s.Distributions() {
		got[d.Latency] = figures{d.Count, math.Round(d.Mean*1000) / 1000, math.Round(*d.Max*1000) / 1000}
		if d.P50 != nil || d.Needs["p50"] != 6*d.Count && d.Count == 1 {
			t.Errorf("%s: a median of one sample, or it does not need 6: %v", d.Latency, d.Needs)
		}
	}
	if d := cmp.Diff(map[measure.Latency]figures{
		measure.TTFT: {1, 100, 100}, measure.TTFTSent: {1, 97, 97}, measure.SecondToken: {1, 30, 30},
		measure.ITL: {3, 26.667, 50}, measure.ITLMessage: {2, 40, 50}, measure.TPOT: {1, 26.667, 26.667},
		measure.E2E: {1, 180, 180}, measure.E2ESent: {1, 177, 177}, measure.NormalizedE2E: {1, 45, 45},
		measure.DispatchDelay: {1, 2, 2}, measure.AdmissionDelay: {1, 2, 2},
	}, got); d != "" {
		t.Error(d)
	}
	if s.OutputTokensPerS != 4 || s.CompletedRPS != 1 || s.PromptTokensPerS != 100 || s.CachedTokensMean != 40 || s.Goodput != 1 {
		t.Errorf("%+v", s)
	}
}

// If the first message has several tokens, the first gap is zero. A single token has no
// TPOT and breaks no bound on it.
func TestSecondTokenInTheFirstMessage(t *testing.T) {
	run := &record.Run{To: time.Second, Records: []*record.Record{
		one(0, record.Arrival{At: 100 * ms, Tokens: 3}), one(0, record.Arrival{At: 100 * ms, Tokens: 1}),
	}}
	s := measure.Summarize(run, measure.Options{SLO: slo(t, "tpot:p99<1ms,second_token:p99<1ms,itl:max<1ms")})
	if s.SecondToken.Count != 1 || *s.SecondToken.Max != 0 || s.ITL.Count != 2 || s.ITLMessage.Count != 0 || s.TPOT.Count != 1 {
		t.Errorf("%d second tokens, %d gaps, %d between messages, %d TPOT", s.SecondToken.Count, s.ITL.Count, s.ITLMessage.Count, s.TPOT.Count)
	}
	if s.SLOAttainment != 1 {
		t.Errorf("%v attained", s.SLOAttainment)
	}
}

func TestOutcomesAndAttainment(t *testing.T) {
	fast := func(due time.Duration) *record.Record {
		return one(due, record.Arrival{At: 50 * ms, Tokens: 1}, record.Arrival{At: 70 * ms, Tokens: 1})
	}
	slow := func(due time.Duration) *record.Record {
		return one(due, record.Arrival{At: 500 * ms, Tokens: 1}, record.Arrival{At: 510 * ms, Tokens: 1})
	}
	ended := func(due, end time.Duration, outcome record.Outcome, code string) *record.Record {
		return &record.Record{Due: due, Dispatched: due, Sent: due, Admitted: record.Unset, End: end, Outcome: outcome, Code: code}
	}
	run := &record.Run{From: time.Second, To: 11 * time.Second, Records: []*record.Record{
		fast(0),        // warm-up: ends before the window
		fast(960 * ms), // warm-up: ends within it
		fast(1000 * ms), fast(2000 * ms), fast(3000 * ms), slow(4000 * ms),
		ended(5000*ms, 5001*ms, record.Rejected, "RESOURCE_EXHAUSTED"),
		ended(5000*ms, 5001*ms, record.Rejected, "RESOURCE_EXHAUSTED"),
		ended(6000*ms, 7001*ms, record.Failed, "INTERNAL"),
		ended(6000*ms, 9000*ms, record.TimedOut, "DEADLINE_EXCEEDED"),
		ended(10000*ms, 10050*ms, record.Cancelled, ""), // might still have met its bounds
		ended(10000*ms, 11000*ms, record.Cancelled, ""), // had broken one
		ended(10500*ms, record.Unset, record.Unsent, ""),
		fast(10990 * ms), // ends after the window
		fast(11001 * ms), // due after it
	}}
	s := measure.Summarize(run, measure.Options{SLO: slo(t, "ttft:p50<100ms,e2e:max<1s")})
	type counts struct{ Requests, Completed, Rejected, Errors, TimedOut, Cancelled, Unsent int }
	if d := cmp.Diff(counts{12, 5, 2, 1, 1, 2, 1}, counts{s.Requests, s.Completed, s.Rejected, s.Errors, s.TimedOut, s.Cancelled, s.Unsent}); d != "" {
		t.Error(d)
	}
	if s.Completed+s.Rejected+s.Errors+s.TimedOut+s.Cancelled+s.Unsent != s.Requests {
		t.Error("the outcomes do not add up")
	}
	if d := cmp.Diff(map[string]int{"RESOURCE_EXHAUSTED": 2, "INTERNAL": 1, "DEADLINE_EXCEEDED": 1}, s.Codes); d != "" {
		t.Error(d)
	}
	for name, pair := range map[string][2]float64{
		"offered": {s.OfferedRPS, 1.2}, "completed": {s.CompletedRPS, 0.5}, "goodput": {s.Goodput, 0.4},
		"tokens":              {s.OutputTokensPerS, 1.0},
		"attained of offered": {s.SLOAttainment, 4.0 / 11}, "of admitted": {s.SLOAttainmentAdmitted, 4.0 / 5},
		"of completed": {s.SLOAttainmentCompleted, 4.0 / 5},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-9 {
			t.Errorf("%s %v, want %v", name, pair[0], pair[1])
		}
	}
	if o := s.Objectives[1]; o.Term != "e2e:max<1s" || o.Met || !o.Missed || o.Measured != nil {
		t.Errorf("requests were refused, yet the longest is %+v", o)
	}
}

// The p99 shows a freeze of 2 s as the wait of each request that was due meanwhile. The
// freeze is one event, so the p99 has no interval.
func TestFreezeShowsInP99(t *testing.T) {
	calm := queue{rate: 50, places: 4, service: 20 * ms, seconds: 60}
	frozen := calm
	frozen.frozen = [2]time.Duration{30 * time.Second, 32 * time.Second}
	before, s := measure.Summarize(calm.run(1), measure.Options{}), measure.Summarize(frozen.run(1), measure.Options{})
	if p99 := *before.TTFT.P99; p99 > 60 {
		t.Errorf("p99 without the freeze %v ms", p99)
	}
	// 100 of 3000 requests were due in it. The p99 is the 70th shortest of these waits,
	// which go from 0 to 2 s.
	if p99 := *s.TTFT.P99; p99 < 1200 || p99 > 1700 {
		t.Errorf("p99 %v ms", p99)
	}
	if _, ok := s.TTFT.CI["p99"]; ok || s.TTFT.Needs["p99"] < 3*s.TTFT.Count || s.TTFT.Effective["p99"] > 300 {
		t.Errorf("one freeze has the interval %v, needs %d of %d, is worth %v", s.TTFT.CI["p99"], s.TTFT.Needs["p99"], s.TTFT.Count, s.TTFT.Effective["p99"])
	}
	if ci := before.TTFT.CI["p99"]; ci[0] > *before.TTFT.P99 || ci[1] < *before.TTFT.P99 || ci[1] == 0 {
		t.Errorf("p99 %v is not in its interval %v", *before.TTFT.P99, ci)
	}
}

// In one row a higher percentile never needs fewer samples than a lower one.
func TestHigherPercentilesNeedNoFewer(t *testing.T) {
	for seed := range uint64(20) {
		run := queue{rate: 55, places: 2, service: 35 * ms, seconds: 10}.run(seed)
		d, last := measure.Summarize(run, measure.Options{}).TTFT, int64(0)
		for _, name := range measure.Percentiles() {
			_, has := d.CI[name]
			if has && last > 0 || !has && d.Needs[name] < last {
				t.Errorf("run %d: the intervals are %v, and needed are %v", seed, d.CI, d.Needs)
				break
			}
			last = max(last, d.Needs[name])
		}
	}
}

func TestFewSamplesHaveNoPercentile(t *testing.T) {
	run := queue{rate: 5, places: 8, service: 20 * ms, seconds: 60, tokens: 4}.run(2)
	s := measure.Summarize(run, measure.Options{SLO: slo(t, "ttft:p99<500ms")})
	if s.TTFT.P99 != nil || s.TTFT.Needs["p99"] < 368 || s.TTFT.P90 == nil || s.TTFT.P999 != nil {
		t.Errorf("%d samples: %+v", s.TTFT.Count, s.TTFT)
	}
	if o := s.Objectives[0]; o.Met || o.Measured != nil {
		t.Errorf("%+v was met by too few", o)
	}
}

// An objective is confirmed if the whole interval of its percentile is within the bound.
func TestObjectiveIsConfirmed(t *testing.T) {
	for _, test := range []struct {
		requests, over int
		met, confirmed bool
		needs          int64
	}{{367, 0, false, false, 368}, {368, 0, true, true, 0}, {368, 1, true, false, 370}, {800, 1, true, true, 0}, {600, 30, false, false, 0}} {
		run := &record.Run{To: time.Hour}
		for i := range test.requests {
			first := 10 * ms
			if i%19 == 0 && i/19 < test.over {
				first = time.Second
			}
			run.Records = append(run.Records, one(time.Duration(i)*time.Second, record.Arrival{At: first, Tokens: 1}))
		}
		o := measure.Summarize(run, measure.Options{SLO: slo(t, "ttft:p99<500ms")}).Objectives[0]
		if o.Met != test.met || o.Confirmed != test.confirmed || o.NeedsRequests != test.needs {
			t.Errorf("%d requests, %d over: %+v", test.requests, test.over, o)
		}
	}
}

func TestClasses(t *testing.T) {
	run := &record.Run{To: 10 * time.Second}
	for i := range 1000 {
		r := one(time.Duration(i)*10*ms, record.Arrival{At: 50 * ms, Tokens: 1})
		r.Class = "interactive"
		if i%2 == 0 {
			r = one(time.Duration(i)*10*ms, record.Arrival{At: 5000 * ms, Tokens: 1})
			r.Class = "batch"
		}
		run.Records = append(run.Records, r)
	}
	s := measure.Summarize(run, measure.Options{SLO: slo(t, "ttft:p90<100ms"), ClassSLO: map[string]measure.SLO{"batch": slo(t, "ttft:p90<10s")}})
	if s.SLOAttainment != 1 || len(s.Objectives) != 2 || !s.Objectives[0].Met || !s.Objectives[1].Met || s.Objectives[1].Class != "batch" {
		t.Errorf("%v attained, %+v", s.SLOAttainment, s.Objectives)
	}
	if c := s.Classes["batch"]; len(s.Classes) != 2 || c.Requests != 500 || c.SLO != "ttft:p90<10s" || *c.TTFT.Max < 4900 || len(c.Objectives) != 1 {
		t.Errorf("%+v", c)
	}
	if c := s.Classes["interactive"]; *c.TTFT.Max > 51 || c.Verdict != s.Verdict || len(c.Objectives) != 1 || !c.Objectives[0].Met {
		t.Errorf("%+v", c)
	}
}

// The completed rate of a server that fell behind is its capacity, not the offered rate
// that it completed long after.
func TestCompletedRateOfAnOverloadedServer(t *testing.T) {
	s := measure.Summarize(queue{rate: 20, places: 1, service: 100 * ms, seconds: 60}.run(1), measure.Options{})
	if s.Completed != s.Requests || math.Abs(s.CompletedRPS-10) > 0.2 {
		t.Errorf("%d of %d at %v a second", s.Completed, s.Requests, s.CompletedRPS)
	}
	if ci := s.RateCI["completed_rps"]; ci[0] > 10 || ci[1] < 10 || ci[1]-ci[0] > 0.5 {
		t.Errorf("within %v", ci)
	}
}

// The summary always encodes as JSON, also that of an empty run.
func TestSummaryIsJSON(t *testing.T) {
	for _, run := range []*record.Run{
		{}, {From: time.Second, To: time.Second}, {From: time.Second},
		{To: time.Second, Records: []*record.Record{{Outcome: record.Unsent, Dispatched: record.Unset, Sent: record.Unset, Admitted: record.Unset, End: record.Unset}}},
		queue{rate: 20, places: 1, service: 100 * ms, seconds: 10}.run(1),
	} {
		s := measure.Summarize(run, measure.Options{SLO: slo(t, "ttft:p99<1s,itl:p50<1s")})
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{`"ttft_ms":{`, `"itl_ms":{`, `"p999":`, `"goodput_rps":`, `"slo_attainment":`, `"verdict":`} {
			if !strings.Contains(string(text), key) {
				t.Errorf("no %s in %s", key, text)
			}
		}
		for _, d := range s.Distributions() {
			if d.Distribution == nil {
				t.Errorf("%s is nil", d.Latency)
			}
		}
	}
}

func TestDefinitionsCoverTheLatencies(t *testing.T) {
	defined := map[string]bool{}
	for _, d := range measure.Definitions() {
		if defined[d.Name] || d.Text == "" {
			t.Errorf("%s twice or empty", d.Name)
		}
		defined[d.Name] = true
	}
	for _, d := range (&measure.Summary{}).Distributions() {
		if !defined[string(d.Latency)] {
			t.Errorf("%s is not defined", d.Latency)
		}
	}
}

// A stall of the server delays a token of every stream at once. That is one event, however
// many gaps it lengthens.
func TestOneStallOfManyStreams(t *testing.T) {
	const streams, tokens = 20, 1000
	make20 := func(stalled func(stream, token int) bool) *measure.Summary {
		run := &record.Run{To: time.Minute}
		for i := range streams {
			var arrivals []record.Arrival
			at := 20 * ms
			for k := range tokens {
				arrivals = append(arrivals, record.Arrival{At: at, Tokens: 1})
				if at += 20 * ms; stalled(i, k) {
					at += 500 * ms
				}
			}
			run.Records = append(run.Records, one(0, arrivals...))
		}
		return measure.Summarize(run, measure.Options{})
	}
	together := make20(func(_, k int) bool { return k == 500 }).ITL
	apart := make20(func(i, k int) bool { return k == (i*47)%990+5 }).ITL
	if together.Effective["p999"] > 2000 || apart.Effective["p999"] < 3*together.Effective["p999"] {
		t.Errorf("together worth %v, apart %v of %d gaps", together.Effective["p999"], apart.Effective["p999"], apart.Count)
	}
	if _, ok := together.CI["p999"]; ok || together.Needs["p999"] < together.Count {
		t.Errorf("one stall has the interval %v and needs %d", together.CI["p999"], together.Needs["p999"])
	}
}
