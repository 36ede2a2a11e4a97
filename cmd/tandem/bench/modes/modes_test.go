package modes_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/modes"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/workload"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

func load(t *testing.T, args ...string) loadtest.Config {
	t.Helper()
	var c loadtest.Config
	fs := pflag.NewFlagSet("load", pflag.ContinueOnError)
	c.RegisterRunFlags(fs)
	if err := fs.Parse(append([]string{"--duration", "300ms", "--warmup", "100ms", "--drain-timeout", "2s"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c
}

func three() []contenders.Contender {
	plan := processes.Plan{Arguments: []string{"--engine", "simulated", "--simulated-base-ms", "1"}, StartTimeout: time.Minute}
	together, split := plan, plan
	together.Decode, split.Prefill, split.Decode = 2, 1, 1
	return []contenders.Contender{
		{Name: modes.Aggregated, Mode: inferencev1.Mode_MODE_AGGREGATED, Plan: together},
		{Name: modes.Disaggregated, Mode: inferencev1.Mode_MODE_DISAGGREGATED, Plan: split},
		{Name: modes.Auto, Mode: inferencev1.Mode_MODE_AUTO, Plan: split},
	}
}

// A search on three meshes ends, whatever it finds in so short a time.
func TestSearchOfMeshes(t *testing.T) {
	benchtest.Children(t)
	r, err := modes.Run(t.Context(), three(), modes.Options{
		Load: load(t, "--prompt-tokens", "8", "--output-tokens", "4", "--min-requests", "1"), Mixes: []modes.Mix{{Name: "8/4"}}, TTFTScale: 10, TPOTScale: 5, Send: true, Rounds: 1, Workers: 2,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Mixes) != 1 || r.Interrupted || len(r.Reports()) != 3 || len(r.Mixes[0].Tries) < 3 {
		t.Errorf("%+v", r)
	}
}

// Given rates leave the tables by rate, the reports, and the highest rate that all met.
func TestRates(t *testing.T) {
	benchtest.Children(t)
	r, err := modes.Run(t.Context(), three(), modes.Options{
		Load:  load(t, "--prompt-tokens", "8", "--output-tokens", "4", "--slo", "ttft:p90<1m,tpot:p90<1m"),
		Mixes: []modes.Mix{{Name: "8/4"}}, Rates: []float64{50, 20}, Rounds: 2, Workers: 2,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Mixes []struct {
			Name, SLO string
			Auto      struct {
				CapacityRPS *float64 `json:"capacity_rps"`
				Rounds      []float64
			}
			AutoOfBetter *float64 `json:"auto_of_better"`
		}
		Reports []json.RawMessage
		Steps   []json.RawMessage
	}
	if err := json.Unmarshal(text.Bytes(), &got); err != nil || len(got.Reports) != 3 || len(got.Steps) != 4 || len(got.Mixes) != 1 {
		t.Fatalf("%v: %s", err, text.String())
	}
	m := got.Mixes[0]
	if m.Name != "8/4" || m.SLO != "ttft:p90<1m0s,tpot:p90<1m0s" || len(m.Auto.Rounds) != 2 {
		t.Errorf("%+v", m)
	}
	// On a busy machine a round may hold only the lower rate, or none.
	for _, held := range m.Auto.Rounds {
		if held != 50 && held != 20 && held != 0 {
			t.Errorf("%+v", m)
		}
	}
	var tables, page strings.Builder
	if err := r.WriteMarkdown(&tables); err != nil || strings.Count(tables.String(), "| auto |") != 4-1 && !strings.Contains(tables.String(), "| 50 | auto |") {
		t.Errorf("%v: %s", err, tables.String())
	}
	if err := r.WritePage(&page, 0); err != nil || !strings.Contains(page.String(), "aggregated, disaggregated, auto") {
		t.Errorf("%v: a page of %d bytes", err, page.Len())
	}
}

// A round that found no rate counts as 0, so that a median is not of the rounds alone that went well.
func TestRoundsWithoutARate(t *testing.T) {
	for _, c := range []struct {
		name                  string
		aggregated, auto      []float64 // 0: none
		rps, autoRPS, ofOther float64   // 0: nil; below 0: 0
		ci                    [2]float64
	}{
		{"all found one", []float64{10, 12, 11}, []float64{11, 11, 11}, 11, 11, 1, [2]float64{10, 12}},
		{"one of three found none", []float64{10, 0, 12}, []float64{10, 10, 12}, 10, 10, 1, [2]float64{0, 12}},
		{"two of three found none", []float64{0, 0, 12}, []float64{0, 9, 12}, 0, 9, 0, [2]float64{}},
		{"auto mostly found none", []float64{10, 10, 10}, []float64{0, 0, 10}, 10, 0, -1, [2]float64{10, 10}},
		{"none", []float64{0, 0}, []float64{0, 0}, 0, 0, 0, [2]float64{}},
	} {
		m := modes.MixedOf(c.aggregated, make([]float64, len(c.auto)), c.auto)
		value := func(v *float64) float64 {
			switch {
			case v == nil:
				return 0
			case *v == 0:
				return -1
			}
			return *v
		}
		if value(m.Aggregated.RPS) != c.rps || value(m.Auto.RPS) != c.autoRPS || value(m.AutoOfBetter) != c.ofOther || !slices.Equal(m.Auto.Rounds, c.auto) || m.Disaggregated.RPS != nil {
			t.Errorf("%s: %+v", c.name, m)
		}
		if want := 1 - math.Exp2(1-float64(len(c.auto))); m.Confidence != want {
			t.Errorf("%s: the level is %v, want %v", c.name, m.Confidence, want)
		}
		if ci := m.Aggregated.CI; (ci != nil) != (c.rps > 0) || ci != nil && *ci != c.ci {
			t.Errorf("%s: the interval is %v", c.name, ci)
		}
	}
}

func TestNamed(t *testing.T) {
	if all, err := modes.Named(nil); err != nil || len(all) != 4 {
		t.Errorf("%v, %v", all, err)
	}
	if two, err := modes.Named([]string{"azure", "32/256"}); err != nil || len(two) != 2 || two[0].Name != "azure" {
		t.Errorf("%v, %v", two, err)
	}
	for _, wrong := range [][]string{{"azur"}, {"azure", "azure"}} {
		if mixes, err := modes.Named(wrong); err == nil {
			t.Errorf("%v are %v", wrong, mixes)
		}
	}
	if err := modes.Check(load(t), modes.Mixes()); err != nil {
		t.Error(err)
	}
}

func TestGiven(t *testing.T) {
	for args, want := range map[string]string{
		"": "512/128", "--prompt-tokens=256 --output-tokens=64": "256/64", "--prompt-tokens=exp:9": "exp:9/128",
	} {
		var s workload.Spec
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		s.RegisterFlags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := modes.Given(s); got.Name != want {
			t.Errorf("%q is %s, want %s", args, got.Name, want)
		}
	}
}

func TestPage(t *testing.T) {
	mixes := modes.Mixes()
	if got := modes.Page("a/b.html", mixes, 1); got != "a/b-256-64.html" {
		t.Error(got)
	}
	if got := modes.Page("a/b.html", mixes[:1], 0); got != "a/b.html" {
		t.Error(got)
	}
	if got := modes.Page("", mixes, 1); got != "" {
		t.Error(got)
	}
}
