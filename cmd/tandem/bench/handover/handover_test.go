package handover_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/handover"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

func plan() handover.Plan {
	return handover.Plan{
		Mesh: processes.Plan{StartTimeout: time.Minute, Arguments: []string{
			"--engine", "simulated", "--simulated-base-ms", "2", "--simulated-real-pages",
		}},
		Transports: []string{"tcp", "unix"}, PromptTokens: 100, OutputTokens: 5, Vocabulary: 500, Requests: 3, Warmup: 1, Checked: 2, Seed: 1,
	}
}

func TestMeasure(t *testing.T) {
	benchtest.Children(t)
	var said []string
	r, err := handover.Measure(t.Context(), plan(), func(line string) { said = append(said, line) })
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ways) != 2 || r.Ways[0].Transport != "tcp" || r.Ways[1].Transport != "unix" || len(said) != 8 {
		t.Fatalf("%+v, said %q", r, said)
	}
	for _, way := range r.Ways {
		if way.Requests != 3 || way.Checked != 2 || way.KVBytes == 0 {
			t.Errorf("%+v", way)
		}
		for name, s := range map[string]handover.Spread{"last layer to committed": way.Tail, "second token": way.SecondToken, "ttft": way.TTFT, "transfer": way.Transfer} {
			if !(s.P50 > 0 && s.P90 >= s.P50 && s.Max >= s.P90) {
				t.Errorf("%s, %s: %+v", way.Transport, name, s)
			}
		}
		if way.Head == (handover.Spread{}) || way.Head.Max > way.Tail.Max {
			t.Errorf("the head takes longer than to the commit: %+v", way)
		}
		if way.Tail.Max > way.Transfer.Max {
			t.Errorf("the end of a transfer is longer than all of it: %+v", way)
		}
	}
}

func TestSpread(t *testing.T) {
	var times []time.Duration
	for i := range 20 {
		times = append(times, time.Duration(20-i)*time.Millisecond)
	}
	if s := handover.SpreadOf(times); s != (handover.Spread{P50: 10, P90: 18, Max: 20}) {
		t.Errorf("%+v", s)
	}
	if s := handover.SpreadOf(times[:1]); s != (handover.Spread{P50: 20, P90: 20, Max: 20}) {
		t.Errorf("%+v", s)
	}
}

func TestWhichRunsAreValid(t *testing.T) {
	quiet, disturbed := handover.Spread{P50: 100, P90: 124, Max: 500}, handover.Spread{P50: 100, P90: 126, Max: 130}
	if r := handover.Judge(4, disturbed); r.Valid != nil {
		t.Errorf("four requests tell %v", *r.Valid)
	}
	if r := handover.Judge(5, quiet, quiet); r.Valid == nil || !*r.Valid || r.Reason != "" {
		t.Errorf("%+v", r)
	}
	if r := handover.Judge(5, quiet, disturbed); r.Valid == nil || *r.Valid || !strings.Contains(r.Reason, "26%") {
		t.Errorf("%+v", r)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*handover.Plan)
	}{
		{"--transport: is empty", func(p *handover.Plan) { p.Transports = nil }},
		{"--transport: \"udp\"", func(p *handover.Plan) { p.Transports = []string{"tcp", "udp"} }},
		{"--prompt", func(p *handover.Plan) { p.PromptTokens = 1 }},
		{"--output", func(p *handover.Plan) { p.OutputTokens = 1 }},
		{"--vocabulary", func(p *handover.Plan) { p.Vocabulary = 1 }},
		{"--requests", func(p *handover.Plan) { p.Requests = 0 }},
		{"--warmup", func(p *handover.Plan) { p.Warmup = -1 }},
		{"--check", func(p *handover.Plan) { p.Checked = 4 }},
	} {
		p := plan()
		c.change(&p)
		if _, err := handover.Measure(t.Context(), p, nil); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
