package evidence_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

const (
	profiles = "../../../../docs/profiles"
	figures  = "../../../../docs/evidence.json"
)

// A search ends within its tolerance below the highest value that passes.
func TestBisect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(0, 5).Draw(t, "low")
		high := low + rapid.Float64Range(0.1, 10).Draw(t, "range")
		most := rapid.Float64Range(low, high).Draw(t, "most")
		within := rapid.Float64Range(0.01, 1).Draw(t, "within")
		got, err := evidence.Bisect(low, high, within, func(v float64) (bool, error) { return v <= most, nil })
		if err != nil || got > most || got < most-within {
			t.Fatalf("%v, %v: the highest that passes is %v", got, err, most)
		}
	})
}

func TestBisectFails(t *testing.T) {
	broken := errors.New("broken")
	if _, err := evidence.Bisect(0, 1, 0.1, func(float64) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// Each runs all, and ends early after an error or with its context.
func TestEach(t *testing.T) {
	var sum atomic.Int64
	if err := evidence.Each(t.Context(), 100, func(i int) error { sum.Add(int64(i)); return nil }); err != nil || sum.Load() != 4950 {
		t.Errorf("%v, %v", sum.Load(), err)
	}
	broken := errors.New("broken")
	const most = 10_000_000 // which the error stops long before
	var ran atomic.Int64
	if err := evidence.Each(t.Context(), most, func(i int) error {
		ran.Add(1)
		if i == 3 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) || ran.Load() == most {
		t.Errorf("%v after %d", err, ran.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := evidence.Each(ctx, 3, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The noise of a ratio covers what its rounds differ by.
func TestNewRatio(t *testing.T) {
	for _, c := range []struct {
		rounds       []float64
		value, noise float64
	}{
		{[]float64{2, 2, 2}, 2, 0.1},
		{[]float64{1, 3}, 2, 2.828},
		{[]float64{4}, 4, 0.2},
	} {
		got := evidence.NewRatio("r", c.rounds, "")
		if math.Abs(got.Value-c.value) > 0.001 || math.Abs(got.Noise-c.noise) > 0.001 {
			t.Errorf("%v: %+v", c.rounds, got)
		}
	}
}

// Where a round has no denominator, the page says so and gives no ratio.
func TestRatioOfSomeRounds(t *testing.T) {
	for _, c := range []struct {
		by   []float64
		want string
	}{
		{[]float64{2, 2}, "| 2 ± 0.1 |"},
		{[]float64{0, 2}, "| none in 1 of 2 rounds |"},
		{[]float64{0, 0}, ""},
	} {
		r := &evidence.Result{Section: "distserve"}
		r.AddRatio("r", []float64{4, 4}, c.by, "")
		d := &evidence.Document{}
		d.Put(r)
		var page strings.Builder
		if err := d.WriteMarkdown(&page); err != nil {
			t.Fatal(err)
		}
		if c.want == "" && len(r.Ratios) > 0 || !strings.Contains(page.String(), c.want) {
			t.Errorf("by %v: the page lacks %q: %+v", c.by, c.want, r.Ratios)
		}
	}
}

// The page of a map says what its runs are like, and what longer ones are.
func TestMapNamesTheOtherRuns(t *testing.T) {
	const long = "tried for 20s, after 20s that do not count, and longer where that is fewer than 400 requests, and found within 1%"
	for long, want := range map[bool]string{
		false: "A rate is tried for 10s, after 15s that do not count, and longer where that is fewer than 200 requests, and found within 3%. With `--long` it is " + long,
		true:  "A rate is " + long + ".",
	} {
		if notes := evidence.MapNotes(evidence.Options{Long: long}); !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("long %v: %q", long, notes)
		}
	}
}

// A point at which nobody serves anything is none of the worst and the best.
func TestMapOfNothing(t *testing.T) {
	rows, ratios := evidence.MapTable()
	if got, want := rows[0][3:], []string{"none", "none", "none", "none", "–", "–"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if ratios[0].Value != 1 || ratios[1].Value != 2 {
		t.Errorf("%+v", ratios)
	}
}

// Every round counts at all points alike, so that those which differ in bandwidth have one capacity of
// aggregated serving; the page says how much rounds differ, and the noise of a ratio covers it.
func TestMapRounds(t *testing.T) {
	r, err := evidence.Mapped(t.Context(), evidence.Options{Profiles: profiles, Long: true}, func(mode string, bandwidth float64, round int) float64 {
		switch fast := bandwidth > 1e10; {
		case mode == "aggregated":
			return []float64{10, 12}[round%2]
		case mode == "disaggregated" && fast:
			return 20
		case mode == "disaggregated":
			return 5
		case fast:
			return []float64{20, 18}[round%2]
		}
		return []float64{10, 12}[round%2]
	})
	if err != nil {
		t.Fatal(err)
	}
	if together := column(t, r.Tables[0], "`aggregated`"); !slices.Equal(together, []float64{10.9, 10.9}) {
		t.Errorf("aggregated serves %v on two networks", together)
	}
	// Of nine rounds, aggregated has five of 10 and four of 12; auto over the better has five of 1 and four of 0.9 on
	// one network, and no deviation on the other.
	for _, want := range []string{": `aggregated` 9.7% and 18.4%, ", ", `auto` over the better 3.9% and 10.5%."} {
		if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, want) }) {
			t.Errorf("the notes lack %q: %q", want, r.Notes)
		}
	}
	if noise := r.Ratios[0].Noise; math.Abs(noise-0.048) > 0.001 { // what rounds differ by is less, of so many
		t.Errorf("%+v", r.Ratios[0])
	}
	if small, err := evidence.Mapped(t.Context(), evidence.Options{Profiles: profiles, Small: true}, func(string, float64, int) float64 { return 7 }); err != nil || small.Ratios[0].Noise != 0.05 {
		t.Errorf("one round: %+v, %v", small, err)
	}
}

// With --long, points have rounds until the mean of auto over the better is known well enough, or too many.
func TestMapRoundsUntilEnough(t *testing.T) {
	for _, c := range []struct {
		name   string
		auto   []float64 // of round after round, again and again
		rounds int
		note   string
	}{
		{"equal rounds", []float64{10}, 3, "mean of 3 rounds of arrivals, or up to 9 until the standard error of `auto` over the better is below 1%"},
		{"more rounds are enough", []float64{10, 10.3, 10, 10, 10, 10}, 6, "`auto` over the better 1.2% and 3.0%."},
		{"nine are not enough", []float64{10, 12, 14}, 9, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var last atomic.Int64
			r, err := evidence.Mapped(t.Context(), evidence.Options{Profiles: profiles, Long: true}, func(mode string, bandwidth float64, round int) float64 {
				for seen := last.Load(); int64(round) > seen && !last.CompareAndSwap(seen, int64(round)); seen = last.Load() {
				}
				if mode == "auto" {
					return c.auto[round%len(c.auto)]
				}
				return 10
			})
			if err != nil {
				t.Fatal(err)
			}
			if rounds := int(last.Load()) + 1; rounds != c.rounds {
				t.Errorf("%d rounds, want %d", rounds, c.rounds)
			}
			if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, c.note) }) {
				t.Errorf("the notes lack %q: %q", c.note, r.Notes)
			}
		})
	}
}

// section is one with these ratios and two tables.
type section []evidence.Ratio

func (section) Name() string  { return "s" }
func (section) Title() string { return "S" }
func (s section) Run(context.Context, evidence.Options) (*evidence.Result, error) {
	return &evidence.Result{Ratios: s, Tables: make([]evidence.Table, 1), FromTraces: make([]evidence.Table, 1)}, nil
}

// checkCommand reads a command that the page prints: its options have to be those that the table was made with.
func checkCommand(t *testing.T, command, section string, o evidence.Options) {
	t.Helper()
	words := strings.Fields(command)
	if len(words) < 3 || !slices.Equal(words[:3], []string{"tandem", "bench", "evidence"}) {
		t.Fatalf("%q is no command of this page", command)
	}
	var got evidence.Options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	name := flags.String("section", "", "")
	flags.BoolVar(&got.Small, "small", false, "")
	flags.BoolVar(&got.Long, "long", false, "")
	flags.StringVar(&got.Traces, "traces", "", "")
	if err := flags.Parse(words[3:]); err != nil || *name != section || got.Small != o.Small || got.Long != o.Long || got.Traces != o.Traces {
		t.Errorf("%q, of section %s with %+v: %v", command, section, o, err)
	}
}

// The command above a table measures it again, with what it was measured with.
func TestCommands(t *testing.T) {
	for _, o := range []evidence.Options{{}, {Small: true}, {Long: true}} {
		got, err := evidence.Run(t.Context(), []evidence.Section{section{}}, o)
		if err != nil {
			t.Fatal(err)
		}
		checkCommand(t, got[0].Tables[0].Command, "s", o)
		o.Traces = "DIR"
		checkCommand(t, got[0].FromTraces[0].Command, "s", o)
	}
}

// What was divided by 0 is left out, so that the rest can be written.
func TestUndefinedRatios(t *testing.T) {
	got, err := evidence.Run(t.Context(), []evidence.Section{section{{Name: "nothing", Value: math.NaN()}, {Name: "endless", Value: math.Inf(1)}, {Name: "one", Value: 1}}}, evidence.Options{})
	if err != nil || len(got[0].Ratios) != 1 || got[0].Ratios[0].Name != "one" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A percentile that a run is too short for counts in no mean.
func TestMeanTTFT(t *testing.T) {
	with := func(p50 *float64) (f report.Figures) {
		f.TTFT = &measure.Distribution{P50: p50}
		return f
	}
	if got := evidence.MeanTTFT([]report.Figures{with(new(4.0)), with(nil), with(new(6.0))}, "p50"); got != 5 {
		t.Errorf("the mean of 4 and 6 is %v", got)
	}
	if got := evidence.MeanTTFT([]report.Figures{with(nil)}, "p50"); !math.IsNaN(got) {
		t.Errorf("the mean of nothing is %v", got)
	}
}

func document() *evidence.Document {
	return &evidence.Document{Version: 1, Small: map[string][]evidence.Ratio{"distserve": {{Name: "a", Value: 2, Noise: 0.1}, {Name: "b", Value: 1, Noise: 0.1}}}}
}

// Check fails for each ratio that moved, is gone or is new, and for nothing else.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		ratios []evidence.Ratio
		want   []string
	}{
		{"within", []evidence.Ratio{{Name: "a", Value: 2.09}, {Name: "b", Value: 0.91}}, nil},
		{"moved", []evidence.Ratio{{Name: "a", Value: 2.11}, {Name: "b", Value: 0.89}}, []string{`"a" is 2.11, was 2`, `"b" is 0.89, was 1`}},
		{"gone", []evidence.Ratio{{Name: "a", Value: 2}}, []string{`"b" is gone`}},
		{"new", []evidence.Ratio{{Name: "a", Value: 2}, {Name: "b", Value: 1}, {Name: "c"}}, []string{`"c" is not in the file`}},
		{"no number", []evidence.Ratio{{Name: "a", Value: math.NaN()}, {Name: "b", Value: 1}}, []string{`"a" is NaN`}},
	} {
		err := document().Check([]*evidence.Result{{Section: "distserve", Ratios: c.ratios}})
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v lacks %q", c.name, err, want)
			}
		}
	}
	if err := document().Check([]*evidence.Result{{Section: "splitwise"}}); err == nil {
		t.Error("a section that the file lacks passed")
	}
}

// New results replace old ones in the order of the page; tables from traces stay.
func TestPut(t *testing.T) {
	d := document()
	traced := []evidence.Table{{Title: "from a trace"}}
	d.Put(&evidence.Result{Section: "splitwise"})
	d.Put(&evidence.Result{Section: "distserve", FromTraces: traced})
	d.Put(&evidence.Result{Section: "distserve", Title: "new"})
	var sections []string
	for _, r := range d.Results {
		sections = append(sections, r.Section)
	}
	if !slices.Equal(sections, []string{"distserve", "splitwise"}) || d.Results[0].Title != "new" || len(d.Results[0].FromTraces) != 1 {
		t.Errorf("%v, %+v", sections, d.Results[0])
	}
	path := filepath.Join(t.TempDir(), "none.json")
	if empty, err := evidence.ReadDocument(path); err != nil || len(empty.Results) != 0 || empty.Small == nil {
		t.Errorf("%+v, %v", empty, err)
	}
}

// The page says who wrote it, and has each figure with its command and its small version.
func TestPage(t *testing.T) {
	d := document()
	d.Put(&evidence.Result{
		Section: "distserve", Title: "A title, on four", Intro: []string{"What it is."}, Notes: []string{"What it is not."},
		Tables:   []evidence.Table{{Title: "Figures", Command: "tandem bench evidence", Header: []string{"a", "b"}, Rows: [][]string{{"1", "2"}}}},
		Pictures: []evidence.Picture{{Name: "p", Alt: "a picture"}}, Ratios: []evidence.Ratio{{Name: "a", Value: 2.5, Noise: 0.25}},
	})
	var page strings.Builder
	if err := d.WriteMarkdown(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Generated by \"make evidence\"", "| [distserve](#a-title-on-four) | a | 2.5 ± 0.25 | none | 2 ± 0.1 |",
		"## A title, on four\n\nWhat it is.\n", "**Figures** `tandem bench evidence`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", "![a picture](images/p.svg)", "- What it is not.\n",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}

// CI can watch every section of the committed figures that has headline ratios, and the page has each that it watches.
func TestCommittedFigures(t *testing.T) {
	d, err := evidence.ReadDocument(figures)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range d.Results {
		if _, known := d.Small[r.Section]; len(r.Ratios) > 0 && !known {
			t.Errorf("%s has no small run: run 'make evidence SECTION=%s'", r.Section, r.Section)
		}
		for _, small := range d.Small[r.Section] {
			if !slices.ContainsFunc(r.Ratios, func(whole evidence.Ratio) bool { return whole.Name == small.Name }) {
				t.Errorf("%s: the page lacks %q, which CI watches", r.Section, small.Name)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	if err := (evidence.Options{Profiles: profiles}).Check(); err != nil {
		t.Error(err)
	}
	if err := (evidence.Options{Profiles: "nowhere"}).Check(); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Error(err)
	}
	if _, err := evidence.Named([]string{"distserv"}); err == nil {
		t.Error("a section that is none was found")
	}
}

// The page in docs is what its figures make: neither is changed alone.
func TestPageIsOfItsFigures(t *testing.T) {
	document, err := evidence.ReadDocument(figures)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := document.WriteMarkdown(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(strings.TrimSuffix(figures, ".json") + ".md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/evidence.md is not what docs/evidence.json makes: run 'tandem bench evidence --section queues', which writes the page again")
	}
}
