package report_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/measure"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/report"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/report/reporttest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/search"
)

func TestJSONReadsBack(t *testing.T) {
	want := reporttest.Sweep("a sweep", disaggregated, []float64{4, 30}, 20*time.Second)
	got, err := report.Read(strings.NewReader(written(t, want.WriteJSON)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("written -, read +\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "read report: line 1, column 1: unexpected end of JSON input"},
		{"syntax", "{\n  \"schema\": \"tandem.bench.serve/1.0\",\n  \"name\": oops\n}", "read report: line 3, column 11: invalid character 'o' looking for beginning of value"},
		{"type", "{\"schema\": \"tandem.bench.serve/1.0\",\n\"requests\": \"many\"}", "read report: line 2, column 18: json: cannot unmarshal string"},
		{"after the end", `{"schema": "tandem.bench.serve/1.0"} x`, "read report: line 1, column 38: invalid character 'x' after top-level value"},
		{"an array", `[1]`, "read report: line 1, column 1: json: cannot unmarshal array"},
		{"another file", `{"tokens": 3}`, `schema is "", not tandem.bench.serve/1.0: it is no report of tandem bench serve`},
		{"another schema", `{"schema": "tandem.bench.engine/1.0"}`, `schema is "tandem.bench.engine/1.0", not tandem.bench.serve/1.0`},
		{"a later version", `{"schema": "tandem.bench.serve/2.0"}`, `schema is "tandem.bench.serve/2.0", and this tandem reads tandem.bench.serve/1.x`},
		{"a step without figures", `{"schema": "tandem.bench.serve/1.0", "search": {"steps": [{"rate": 1}]}}`, "search.steps[0] has no summary"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := report.Read(strings.NewReader(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// A later version of the same number before the dot may have more keys.
func TestReadTakesLaterVersions(t *testing.T) {
	r, err := report.Read(strings.NewReader(`{"schema": "tandem.bench.serve/1.7", "requests": 3, "new": {"a": 1}}`))
	if err != nil || r.Requests != 3 || r.TTFT == nil {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Whatever can be read can be shown.
func FuzzRead(f *testing.F) {
	// Small, so that the fuzzer is quick.
	seed := reporttest.Single("", disaggregated, 3, 2*time.Second)
	for _, d := range seed.Distributions() {
		d.HDR = ""
	}
	seed.Series, seed.Curves, seed.Tail.Slowest = seed.Series[:1], nil, seed.Tail.Slowest[:1]
	seed.SetSearch(search.Result{Knee: &seed.Rate, Steps: []search.Step{{Rate: seed.Rate, Summary: &measure.Summary{}}}}, []report.Figures{seed.Figures})
	text, err := json.Marshal(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"schema": "tandem.bench.serve/1.0", "ttft_ms": null, "classes": {"a": null, "b": {}}, "search": {"steps": [{"summary": {}}], "knee_rps": 1}}`)
	f.Add(`{"schema": "tandem.bench.serve/1.0", "ttft_ms": {"count": 1, "p50": 1e308, "ci": {"p50": [-1e308, 1e308]}, "needs": {"p99": -1}}}`)
	f.Add(`{"schema": "tandem.bench.serve/1.0", "tail": {"amdahl": [{"speedup": 0}], "slowest": [{"by": "x", "e2e_ms": 1e308, "spans": [{"stage": "?", "from_ms": -1e308, "to_ms": 1e308}]}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := report.Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for name, write := range map[string]func(io.Writer) error{
			"table": func(w io.Writer) error { return r.WriteTable(w, 80) },
			"html":  func(w io.Writer) error { return report.WriteHTML(w, r) },
			"json":  r.WriteJSON, "csv": r.WriteStepsCSV,
		} {
			if err := write(io.Discard); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
