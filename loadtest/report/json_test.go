package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/search"
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

// keyed is a report with these keys.
func keyed(keys string) string { return `{"schema": "tandem.bench.serve/1.0", ` + keys + "}" }

func TestReadRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "read report: line 1, column 1: unexpected end of JSON input"},
		{"syntax", "{\n  \"schema\": \"tandem.bench.serve/1.0\",\n  \"name\": oops\n}", "read report: line 3, column 11: invalid character 'o' looking for beginning of value"},
		{"type", "{\"schema\": \"tandem.bench.serve/1.0\",\n\"requests\": \"many\"}", "read report: line 2, column 18: requests: expected a whole number, not string"},
		{"after the end", `{"schema": "tandem.bench.serve/1.0"} x`, "read report: line 1, column 38: invalid character 'x' after top-level value"},
		{"an array", `[1]`, "not a report of bench serve: expected an object at line 1, column 1"},
		{"an array further down", "\n  [1]", "not a report of bench serve: expected an object at line 2, column 3"},
		{"text", "hello", "not a report of bench serve: expected an object at line 1, column 1"},
		{"null", "null", "not a report of bench serve: expected an object at line 1, column 1"},
		{"a schema that is no text", `{"schema": 3}`, "line 1, column 12: schema: expected a string, not number"},
		{"an array where an object is due", `{"schema": "tandem.bench.serve/1.0", "search": {"steps": [{"summary": {"ttft_ms": [1]}}]}}`, "search.steps.summary.ttft_ms: expected an object, not array"},
		{"a figure too large", keyed(`"ttft_ms": {"p99": 1e999}`), "ttft_ms.p99: expected a number, not number 1e999"},
		{"NaN", keyed(`"goodput_rps": NaN`), "line 1, column 53: invalid character 'N'"},
		{"a negative latency", keyed(`"ttft_ms": {"count": 1, "p99": -5}`), "ttft_ms.p99 is -5, and it cannot be below 0"},
		{"a negative count", keyed(`"completed": -1`), "completed is -1, and it cannot be below 0"},
		{"a negative rate", keyed(`"classes": {"chat": {"goodput_rps": -2}}`), "classes.chat.goodput_rps is -2, and it cannot be below 0"},
		{"a share above 1", keyed(`"slo_attainment": 1.5`), "slo_attainment is above 1"},
		{"an interval turned round", keyed(`"itl_ms": {"ci": {"p50": [9, 3]}}`), "itl_ms.ci.p50 is [9, 3]: an interval cannot end before it begins"},
		{"a negative interval", keyed(`"itl_ms": {"ci": {"p50": [-9, 3]}}`), "itl_ms.ci.p50 is -9"},
		{"a rate's interval turned round", keyed(`"runs": [{"rate_ci": {"goodput_rps": [2, 1]}}]`), "runs[0].rate_ci.goodput_rps is [2, 1]"},
		{"a step's figure", keyed(`"search": {"steps": [{"rate": 1, "summary": {"e2e_ms": {"max": -1}}}]}`), "search.steps[0].summary.e2e_ms.max is -1"},
		{"a search's rate", keyed(`"search": {"max_rps": -1}`), "search.max_rps is -1"},
		{"an objective", keyed(`"objectives": [{"measured_ms": -1}]`), "objectives[0].measured_ms is -1"},
		{"another file", `{"tokens": 3}`, `schema is "", not tandem.bench.serve/1.0: it is no report of tandem bench serve`},
		{"another schema", `{"schema": "tandem.bench.engine/1.0"}`, `schema is "tandem.bench.engine/1.0", not tandem.bench.serve/1.0`},
		{"a later version", `{"schema": "tandem.bench.serve/2.0"}`, `schema is "tandem.bench.serve/2.0", and this tandem reads tandem.bench.serve/1.x`},
		{"a step without figures", `{"schema": "tandem.bench.serve/1.0", "search": {"steps": [{"rate": 1}]}}`, "search.steps[0] has no summary"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := report.Read(strings.NewReader(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "Go ") {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// A later minor version may have more keys.
func TestReadTakesLaterVersions(t *testing.T) {
	r, err := report.Read(strings.NewReader(`{"schema": "tandem.bench.serve/1.7", "requests": 3, "new": {"a": 1}}`))
	if err != nil || r.Requests != 3 || r.TTFT == nil {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Every report that can be read can be shown.
func FuzzRead(f *testing.F) {
	// Small, for a fast fuzzer.
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
			"json":  r.WriteJSON,
		} {
			if err := write(io.Discard); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A report of a simulation says so wherever it is read, and keeps what it took.
func TestSimulated(t *testing.T) {
	r := reporttest.Single("one of eight slow", disaggregated, 5, 20*time.Second)
	r.Client.Cores = 0
	r.Simulation = &report.Simulation{VirtualS: 33, WallS: 0.5, RequestsPerWallS: 2000, Workers: 8, WorkerHours: map[string]float64{"d": 3, "p": 1.5}, Sizes: []report.PoolSize{{AtS: 5, Pool: "d", Workers: 3}}}
	const says = "simulated: 8 workers, 33 s of virtual time in 500 ms, 2000 requests per second of real time; 4.50 worker-hours (d 3, p 1.50)"
	var text, table, page bytes.Buffer
	if err := errors.Join(r.WriteJSON(&text), r.WriteTable(&table, 200), report.WriteHTML(&page, r)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(strings.Fields(table.String()), " "), says) || strings.Contains(table.String(), "client: ") {
		t.Errorf("the table does not say %q, or speaks of a client:\n%s", says, table.String())
	}
	if !strings.Contains(page.String(), says) || strings.Contains(page.String(), "<dt>client</dt>") {
		t.Errorf("the page does not say %q, or speaks of a client", says)
	}
	if !strings.Contains(text.String(), `"virtual_s": 33,`) {
		t.Error("the JSON has no virtual_s at its top level")
	}
	again, err := report.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	if again.Simulation == nil || !reflect.DeepEqual(again.Simulation, r.Simulation) {
		t.Errorf("read back: %+v", again.Simulation)
	}
}
