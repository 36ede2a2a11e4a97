package evidence_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// small is what the small version of a section measures, whose headline ratios have to be
// those of docs/evidence.json: CI's watch on the claim.
func small(t *testing.T, name string) *evidence.Result {
	t.Helper()
	if testing.Short() {
		t.Skip("simulates for seconds")
	}
	sections, err := evidence.Named([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	all, err := evidence.Run(t.Context(), sections, evidence.Options{Small: true, Profiles: profiles})
	if err != nil {
		t.Fatal(err)
	}
	committed, err := evidence.ReadDocument(figures)
	if err != nil {
		t.Fatal(err)
	}
	if err := committed.Check(all); err != nil {
		t.Error(err)
	}
	for _, table := range all[0].Tables {
		if strings.HasPrefix(table.Command, "tandem") {
			checkCommand(t, table.Command, name, evidence.Options{Small: true})
		}
		if len(table.Rows) == 0 {
			t.Errorf("%s: no rows", table.Title)
		}
		for _, row := range table.Rows {
			if len(row) != len(table.Header) {
				t.Errorf("%s: a row of %d cells below %d", table.Title, len(row), len(table.Header))
			}
		}
	}
	for _, p := range all[0].Pictures {
		for d := xml.NewDecoder(bytes.NewReader(p.SVG)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s is no picture: %v", p.Name, err)
				break
			}
		}
	}
	for _, r := range all[0].Ratios {
		if !(r.Value > 0) || math.IsInf(r.Value, 0) || !(r.Noise > 0) {
			t.Errorf("%s is %v with noise %v", r.Name, r.Value, r.Noise)
		}
	}
	return all[0]
}

// column is the numbers of a table's column.
func column(t *testing.T, table evidence.Table, header string) (values []float64) {
	t.Helper()
	for i, h := range table.Header {
		if h != header {
			continue
		}
		for _, row := range table.Rows {
			text, _, _ := strings.Cut(row[i], " ")
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, v)
		}
		return values
	}
	t.Fatalf("%s has no column %q", table.Title, header)
	return nil
}

// Sections are measured, and their headline ratios stay where they are. The other tests look
// at more of some of them.
func TestSections(t *testing.T) {
	longtest.Only(t)
	for _, s := range evidence.Sections() {
		if slices.Contains([]string{"queues", "placement-tight", "policies", "scale", "live"}, s.Name()) {
			continue
		}
		t.Run(s.Name(), func(t *testing.T) {
			t.Parallel()
			small(t, s.Name())
		})
	}
}

// One worker that serves one request at a time waits as queueing theory says.
func TestQueuesObeyTheFormulas(t *testing.T) {
	t.Parallel()
	r := small(t, "queues")
	exact := column(t, r.Tables[0], "Lindley's recursion")
	for i, measured := range column(t, r.Tables[0], "measured") {
		if ratio := measured / exact[i]; math.Abs(ratio-1) > 0.03 {
			t.Errorf("row %d: the wait is %.3f of the exact one", i, ratio)
		}
	}
	for i, ratio := range column(t, r.Tables[0], "measured over M/G/1") {
		if math.Abs(ratio-1) > 0.25 {
			t.Errorf("row %d: the wait is %.3f of that of M/G/1", i, ratio)
		}
	}
}

// The warm-up begins the waits of the requests that count, and is none of them.
func TestWaitsAfterTheWarmup(t *testing.T) {
	const step = evidence.QueueStep
	run := &record.Run{From: 3 * step, To: 100 * step}
	begins := time.Duration(0)
	for i, due := range []time.Duration{0, step, 2 * step, 3 * step, 20 * step, 21 * step} {
		begins = max(begins, due)
		run.Records = append(run.Records, &record.Record{Index: i, Due: due, Outcome: record.Completed, OutputTokens: 4, Arrivals: []record.Arrival{{At: begins + step}}})
		begins += 4 * step
	}
	// The fourth waits until three answers are done, the sixth for most of one.
	want := (9 + 0 + 3) * step.Seconds() / 3
	measured, recursion, err := evidence.WaitsOf(run)
	if err != nil || math.Abs(measured-want) > 1e-9 || math.Abs(recursion-want) > 1e-9 {
		t.Errorf("%v, and %v by the recursion; want %v: %v", measured, recursion, want, err)
	}
}

// What is said to be refused nothing is refused nothing, however late it is.
func TestNothingIsRefused(t *testing.T) {
	t.Parallel()
	o := evidence.Options{Profiles: profiles}
	if n, err := evidence.MooncakeRefused(t.Context(), o, 150, 100); n > 0 || err != nil {
		t.Errorf("Mooncake's conversations: %d, %v", n, err)
	}
	if n, err := evidence.DistServeRefused(t.Context(), o, 100); n > 0 || err != nil {
		t.Errorf("DistServe's code completion: %d, %v", n, err)
	}
}

// Decisions and messages are counted while requests come: routers decide as often as they do, and again for
// hedged attempts.
func TestScaleCountsWhileRequestsCome(t *testing.T) {
	t.Parallel()
	decisions, requests, err := evidence.ScaleDecisions(t.Context(), evidence.Options{Profiles: profiles}, 100, 2*time.Second)
	if ratio := decisions / requests; err != nil || ratio < 0.97 || ratio > 1.1 {
		t.Errorf("%v decisions a second, of %v requests: %v", decisions, requests, err)
	}
}

// Where a token must come soon and prompts are short, workers apart serve more, and auto finds that.
func TestAutoFindsTheBetterPlacement(t *testing.T) {
	t.Parallel()
	r := small(t, "placement-tight")
	for i, ratio := range column(t, r.Tables[0], "`auto` over the better") {
		if ratio < 0.85 {
			t.Errorf("auto has %.3f of the better placement: %v", ratio, r.Tables[0].Rows[i])
		}
	}
	aggregated, disaggregated := column(t, r.Tables[0], "`aggregated`"), column(t, r.Tables[0], "`disaggregated`")
	if disaggregated[0] < 1.2*aggregated[0] {
		t.Errorf("apart they serve %v, together %v", disaggregated[0], aggregated[0])
	}
}

func TestPoliciesOnBursts(t *testing.T) {
	t.Parallel()
	r := small(t, "policies")
	if met := column(t, r.Tables[0], "2"); len(met) < 6 {
		t.Errorf("%d policies", len(met))
	}
}

// Hits of the prefix cache are near those of one that never computes a prefix twice.
func TestScale(t *testing.T) {
	t.Parallel()
	r := small(t, "scale")
	if hits := r.Ratios[0].Value; hits < 0.6 || hits > 1 {
		t.Errorf("prefix hits are %.3f of the ideal", hits)
	}
}

// A mesh of processes and its simulation are measured.
func TestLive(t *testing.T) {
	benchtest.Children(t)
	if rows := small(t, "live").Tables[0].Rows; len(rows) != 1 {
		t.Errorf("%q", rows)
	}
}

// Live figures come first, and what is missing is said to be.
func TestLiveRows(t *testing.T) {
	of := func(share, ttft float64) report.Figures {
		var f report.Figures
		f.TTFT, f.SLOAttainment = &measure.Distribution{P50: &ttft}, share
		return f
	}
	rows, worst := evidence.LiveRows(of(0.8, 100), of(0.88, 80))
	if want := []string{"some workers", "10", "80, 88 (+10.0%)", "100, 80 (-20.0%)", "too few", "too few", "too few"}; !slices.Equal(rows[0], want) || worst != 0.8 {
		t.Errorf("%q, %v; want %q and 0.8", rows[0], worst, want)
	}
}

// Clusters that nobody serves are left out, and those count where the placements differ.
func TestRandomRows(t *testing.T) {
	rows, err := evidence.RandomRows([3]float64{10, 10, 10}, [3]float64{0.5, 0.1, 0}, [3]float64{4, 8, 9}, [3]float64{8, 2, 4})
	want := [][]string{
		{"`auto`", "3", "0.875", "1.000", "0.500", "0.500", "67%"},
		{"`auto`, where the two differ by more than 5%", "2", "0.812", "0.500", "0.500", "0.500", "50%"},
		{"`aggregated`, there", "2", "0.750", "0.500", "0.500", "0.500", "50%"},
		{"`disaggregated`, there", "2", "0.625", "0.250", "0.250", "0.250", "50%"},
	}
	if err != nil || !slices.EqualFunc(rows, want, slices.Equal[[]string]) {
		t.Errorf("%q, %v; want %q", rows, err, want)
	}
	if _, err := evidence.RandomRows([3]float64{0, 0, 0}); err == nil {
		t.Error("no error though nothing is served")
	}
}

// Every cluster that may be drawn can be simulated.
func TestDrawnClusters(t *testing.T) {
	for number := range uint64(500) {
		text, rate, err := evidence.DrawCluster(evidence.Options{Profiles: profiles}, number)
		if err != nil || !(rate > 0) {
			t.Fatalf("cluster %d, %v requests/s: %v\n%s", number, rate, err, text)
		}
	}
}
