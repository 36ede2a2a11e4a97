package commands_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const scenarios = "../../../../docs/scenarios/"

// simulated are the keys of a simulation's report, as the contract has them.
type simulated struct {
	figures
	VirtualS         *float64 `json:"virtual_s"`
	WallS            *float64 `json:"wall_s"`
	RequestsPerWallS *float64 `json:"requests_per_wall_s"`
	Workers          *int     `json:"workers"`
	Search           *struct {
		Steps []any    `json:"steps"`
		Max   *float64 `json:"max_rps"`
	} `json:"search"`
	told string // on stderr
}

func simulate(t *testing.T, args ...string) simulated {
	t.Helper()
	got := run(t.Context(), "", nil, append([]string{"simulate", "--json"}, args...)...)
	if got.status != 0 {
		t.Fatalf("%v: status %d: %s", args, got.status, got.stderr)
	}
	var s simulated
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil {
		t.Fatalf("%v in %s", err, got.stdout)
	}
	s.checkKeys(t)
	if s.VirtualS == nil || s.WallS == nil || s.RequestsPerWallS == nil || s.Workers == nil {
		t.Errorf("%v: a key of a simulation is missing: %s", args, got.stdout)
	}
	s.told = got.stderr
	return s
}

// onVirtualTime leaves a test of minutes of virtual time to runs without -short, which is how the
// race detector's are called: what it is about has one goroutine.
func onVirtualTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and has one goroutine")
	}
}

// The scenarios of the docs run, and every request that comes is served.
func TestScenariosOfTheDocs(t *testing.T) {
	onVirtualTime(t)
	files, err := filepath.Glob(scenarios + "*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			args := []string{"--rate=5", "--warmup=1s"}
			if filepath.Base(file) == "day.yaml" { // two hours
				args[0] = "--rate=0.1"
			}
			s := simulate(t, append([]string{file}, args...)...)
			completed := s.Completed
			if filepath.Base(file) == "day.yaml" && completed >= *s.Requests*99/100 { // some of its answers take too long
				completed = *s.Requests
			}
			if completed != *s.Requests || s.Completed < 50 || *s.Workers < 3 || *s.VirtualS < 12 || s.Target.Kind != "simulated" || s.Target.Model == "" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// trafficFile writes a scenario with some traffic.
func trafficFile(t *testing.T, model, traffic string, more ...string) string {
	t.Helper()
	return profiledFile(t, 0.1, model, traffic, more...)
}

// profiledFile writes one whose tokens take so long.
func profiledFile(t *testing.T, perTokenMs float64, model, traffic string, more ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "s.yaml")
	text := "model: " + model + fmt.Sprintf("\nprofile: {base-ms: 10, per-token-ms: %g}", perTokenMs) + "\npools: {d: {role: decode, count: 2}}\ntraffic: {" + traffic + "}\n" + strings.Join(more, "\n")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// scenarioFile writes one whose requests are quick to simulate.
func scenarioFile(t *testing.T, more ...string) string {
	t.Helper()
	return trafficFile(t, "tiny", quickTraffic, more...)
}

const quickTraffic = "rate: 20, duration: 10s, warmup: 1s, prompt-tokens: 40, output-tokens: 5"

// Prompts that are text are served, whether the model has a tokenizer or not.
func TestSimulateText(t *testing.T) {
	fable, err := filepath.Abs("../../../../models/fable")
	if err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(t.TempDir(), "trace.json")
	talk := `{"conversations": [{"from": "human", "value": "Once upon a time"}, {"from": "gpt", "value": "there was a fox"}, {"from": "human", "value": "And then?"}, {"from": "gpt", "value": "It ran."}]}`
	if err := os.WriteFile(trace, []byte("["+strings.Repeat(talk+",", 20)+talk+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"tiny", fable} {
		for _, traffic := range []string{"prompt-kind: text, prompt-tokens: 40, output-tokens: 5", "warmup: 0s, trace: " + trace} {
			if s := simulate(t, trafficFile(t, model, "rate: 10, duration: 10s, "+traffic)); s.Completed != *s.Requests || s.Completed < 40 {
				t.Errorf("%s with %s: %d of %d requests completed", model, traffic, s.Completed, *s.Requests)
			}
		}
	}
}

// The table has no line about a client, and the page is said to be written.
func TestSimulateForPeople(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	got := run(t.Context(), "", nil, "simulate", scenarioFile(t), "--report", page)
	if got.status != 0 || strings.Contains(got.stdout, "client") || !strings.Contains(got.stdout, "\ntandem ") {
		t.Errorf("status %d:\n%s", got.status, got.stdout)
	}
	if !strings.HasSuffix(got.stderr, "\nwrote the page "+page+": open it in a browser\n") {
		t.Errorf("it says %q", got.stderr)
	}
	help := run(t.Context(), "", nil, "simulate", "--help").stdout
	for _, want := range []string{"(default: the file's, else 1)", "defaults below apply where neither sets a value"} {
		if !strings.Contains(strings.Join(strings.Fields(help), " "), want) {
			t.Errorf("the help lacks %q:\n%s", want, help)
		}
	}
}

// Equal seeds give equal reports, but for the real time; another seed gives another.
func TestSimulateRepeats(t *testing.T) {
	file := scenarioFile(t, "seed: 3")
	once := func(args ...string) string {
		got := run(t.Context(), "", nil, append([]string{"simulate", "--json", file}, args...)...)
		if got.status != 0 {
			t.Fatal(got.stderr)
		}
		var all map[string]any
		if err := json.Unmarshal([]byte(got.stdout), &all); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"began", "wall_s", "requests_per_wall_s", "command"} {
			delete(all, key)
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := once()
	if again := once(); again != first {
		t.Errorf("the same seed:\n%s\n%s", first, again)
	}
	if again := once("--seed=3"); again != first {
		t.Error("the seed of the file and that of the flag differ")
	}
	if other := once("--seed=4"); other == first {
		t.Error("another seed gives the same report")
	}
}

// Pools that follow the load do so by the policy of the file or of the command line, or not at all;
// the report says what that took.
func TestSimulateAutoscale(t *testing.T) {
	file := scenarioFile(t, "autoscale: {d: 1..4, start-time: 2s, down-after: 10s}")
	type report struct {
		WorkerHours map[string]float64 `json:"worker_hours"`
		Sizes       []struct {
			Pool    string `json:"pool"`
			Workers int    `json:"workers"`
		} `json:"sizes"`
	}
	of := func(args ...string) (r report) {
		got := run(t.Context(), "", nil, append([]string{"simulate", "--json", file}, args...)...)
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.status != 0 {
			t.Fatalf("%v: %+v: %v", args, got, err)
		}
		return r
	}
	for _, args := range [][]string{nil, {"--autoscale=utilisation"}, {"--autoscale=queue"}} {
		if r := of(args...); len(r.Sizes) == 0 || r.Sizes[0].Pool != "d" || r.WorkerHours["d"] <= 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	one, three := of("--fixed=d=1"), of("--fixed=d=3")
	if ratio := three.WorkerHours["d"] / one.WorkerHours["d"]; len(one.Sizes) > 0 || ratio < 2.8 || ratio > 3.2 {
		t.Errorf("one worker took %+v, three %+v", one, three)
	}
	if got := run(t.Context(), "", nil, "simulate", file); got.status != 0 || !strings.Contains(got.stdout, " worker-hours (d ") {
		t.Errorf("%+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "simulate", file, "--autoscale=queu"), 2, `there is no policy of scaling "queu", did you mean "queue"?`)
	checkFailure(t, run(t.Context(), "", nil, "simulate", file, "--fixed=e=3"), 2, `there is no pool "e": the pools are d`)
	checkFailure(t, run(t.Context(), "", nil, "simulate", scenarioFile(t), "--autoscale=queue"), 2, `follows the load: add autoscale to it`)
}

// Sweeps and searches work on simulated runs, whatever load the file asks for.
func TestSimulateSearches(t *testing.T) {
	onVirtualTime(t)
	file := profiledFile(t, 0.5, "tiny", quickTraffic) // of which workers hold few
	sweep := simulate(t, file, "--sweep=5,10,400", "--slo=ttft:p50<60ms")
	if sweep.Search == nil || len(sweep.Search.Steps) != 3 || sweep.Search.Max == nil || *sweep.Search.Max != 10 {
		t.Errorf("%+v", sweep.Search)
	}
	found := simulate(t, file, "--find-max", "--duration=10s", "--slo=ttft:p50<60ms")
	if found.Search == nil || found.Search.Max == nil || *found.Search.Max < 20 {
		t.Errorf("%+v", found.Search)
	}
	if strings.Contains(found.told, "left") || !strings.Contains(found.told, "step 3") {
		t.Errorf("virtual time is told as time left: %s", found.told)
	}
	got := run(t.Context(), "", nil, "simulate", file, "--find-max", "--duration=2s", "--rate=10", "--slo=ttft:p50<1us") // no token is as fast
	if got.status != 1 || !strings.HasSuffix(got.stderr, "\ntandem: no rate was found that is stable and meets the SLO: the report says why of each that was tried\n") || !strings.Contains(got.stdout, "ttft:p50<1") {
		t.Errorf("a search without a result: %+v", got)
	}
	closed := simulate(t, file, "--concurrency=4")
	if closed.Completed < 100 {
		t.Errorf("%+v", closed)
	}
}

func TestSimulateErrors(t *testing.T) {
	azure := filepath.Join(t.TempDir(), "azure.csv")
	if err := os.WriteFile(azure, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,30,4\n2023-11-16 18:15:56,20,9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "needs the SCENARIO.yaml"},
		{[]string{"/nowhere.yaml"}, "read scenario /nowhere.yaml: no such file or directory: name a file that can be read"},
		{[]string{scenarioFile(t, "events: [{at: 1s, kill: d-3}]")}, `s.yaml:5: "events.kill": there is no worker "d-3": did you mean "d-1"?`},
		{[]string{scenarioFile(t), "--slo=ttft"}, "--slo: "},
		{[]string{scenarioFile(t, "events:", "- {at: 1s, rate-times: 2, for: 1s}"), "--concurrency=3"}, "s.yaml:6: --surge multiplies a rate"},
		{[]string{scenarioFile(t, "events:", "- {at: 11s, kill: d-1}")}, "s.yaml:6: the event is at 11s, but the traffic ends at 11s"},
		{[]string{scenarioFile(t, "events:", "- {at: 10s, kill: d-1}"), "--duration=8s"}, "s.yaml:6: the event is at 10s, but the traffic ends at 9s"},
		{[]string{trafficFile(t, "tiny", "speed: 2, duration: 1h, trace: "+azure, "events:", "- {at: 5001ms, kill: d-1}")}, "s.yaml:6: the event is at 5.001s, but the traffic ends at 5s"},
		{[]string{scenarioFile(t), "--vocabulary-size=5"}, "tandem: --vocabulary-size is 5: choose 16 or more"},
		{[]string{scenarioFile(t), "--shared-prefix-tokens=1000000"}, "tandem: --shared-prefix-tokens is 1000000"},
		{[]string{trafficFile(t, "tiny", "help: true")}, `s.yaml:4: unknown key "traffic.help"`},
		{[]string{trafficFile(t, "tiny", "help-all: true")}, `s.yaml:4: unknown key "traffic.help-all"`},
		{[]string{scenarioFile(t), "--send-slo"}, "tandem: --send-slo finds no bound to send"},
		{[]string{scenarioFile(t), "--rate=-3"}, "tandem: --rate: -3 is outside"},
		{[]string{trafficFile(t, "tiny", "rate: -3")}, "s.yaml:4: --rate: -3 is outside"},
		{[]string{trafficFile(t, "tiny", "rate: -3"), "--seed=3"}, "s.yaml:4: --rate: -3 is outside"},
		{[]string{scenarioFile(t), "--mode=both"}, `tandem: --mode: "both" is not auto`},
		{[]string{scenarioFile(t), "--trace=/nowhere.csv"}, "tandem: --trace: open /nowhere.csv: no such file"},
		{[]string{trafficFile(t, "tiny", "trace: /nowhere.csv")}, "s.yaml:4: --trace: open /nowhere.csv: no such file"},
	} {
		got := run(t.Context(), "", nil, append([]string{"simulate"}, test.args...)...)
		if got.status == 0 || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: status %d, %q does not say %q", test.args, got.status, got.stderr, test.want)
		}
	}
}

// A flag that is wrong is a mistake on the command line, unless it was set elsewhere.
func TestSimulateBlamesFlags(t *testing.T) {
	file := scenarioFile(t)
	checkFailure(t, run(t.Context(), "", nil, "simulate", file, "--rate=-3"), 2, "requests a second: see 'tandem simulate --help'")
	checkFailure(t, run(t.Context(), "", []string{"TANDEM_RATE=-3"}, "simulate", file), 1, "tandem: environment variable TANDEM_RATE: -3 is outside")
	checkFailure(t, run(t.Context(), "", nil, "simulate", file, "--trace=/nowhere.csv"), 1, "--trace: open /nowhere.csv")
	odd := filepath.Join(t.TempDir(), "odd.txt")
	if err := os.WriteFile(odd, []byte("what is this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := trafficFile(t, "tiny", "warmup: 1s")
	checkFailure(t, run(t.Context(), "", nil, "simulate", plain, "--trace", odd), 1, "tandem: "+odd)
	checkFailure(t, run(t.Context(), "", nil, "simulate", plain, "--trace", filepath.Dir(odd)), 2, "tandem: --trace: "+filepath.Dir(odd)+" is not a regular file")
	checkFailure(t, run(t.Context(), "", nil, "simulate", "/nowhere.yaml"), 1, "no such file")
	checkFailure(t, run(t.Context(), "", nil, "replay", "/nowhere.events"), 1, "/nowhere.events: no such file or directory: name a log that --record of 'tandem up' or 'tandem serve' wrote")
}

// All routing policies serve the same traffic, and the table has the one first that serves the most
// in time.
func TestSimulatePolicies(t *testing.T) {
	onVirtualTime(t)
	args := []string{"simulate", scenarios + "overload.yaml", "--policies", "--rate=200", "--duration=5s", "--warmup=1s"}
	got := run(t.Context(), "", nil, append(args, "--json")...)
	var table struct {
		Policies []struct {
			Policy     string   `json:"policy"`
			GoodputRPS *float64 `json:"goodput_rps"`
			Completed  int      `json:"completed"`
		} `json:"policies"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &table); err != nil || got.status != 0 {
		t.Fatalf("%+v: %v", got, err)
	}
	names := map[string]bool{}
	for i, row := range table.Policies {
		names[row.Policy] = true
		if row.GoodputRPS == nil || row.Completed == 0 || i > 0 && *row.GoodputRPS > *table.Policies[i-1].GoodputRPS {
			t.Errorf("row %d: %+v in %s", i, row, got.stdout)
		}
	}
	if len(names) != 6 || !names["slo"] || !names["round-robin"] {
		t.Errorf("policies %v", names)
	}
	if got := run(t.Context(), "", nil, args...); got.status != 0 || !strings.HasPrefix(got.stdout, "goodput for ttft:p90<500ms,tpot:p90<30ms\n\nPOLICY ") {
		t.Errorf("%+v", got)
	}
	if got := run(t.Context(), "", nil, append(args, "--request-timeout=1ms")...); got.status != 1 || !strings.HasPrefix(got.stdout, "goodput for") || !strings.Contains(got.stderr, "no request was completed, whatever the policy") {
		t.Errorf("%+v", got)
	}
	if got := run(t.Context(), "", nil, append(args, "--slo=", "--send-slo=false", "--preset=mlperf:llama-3.1-8b-server", "--duration=2s")...); got.status != 0 || !strings.HasPrefix(got.stdout, "goodput for ttft:p99<=2s,tpot:p99<=100ms\n\nPOLICY ") {
		t.Errorf("of a preset: %+v", got)
	}
	for _, more := range [][]string{{"--find-max", "leave out --sweep, --find-max"}, {"--slo=", "say what that is with --slo", "--send-slo=false"}} {
		if got := run(t.Context(), "", nil, slices.Concat(args, more[:1], more[2:])...); got.status != 2 || !strings.Contains(got.stderr, more[1]) {
			t.Errorf("%s: %+v", more[0], got)
		}
	}
}
