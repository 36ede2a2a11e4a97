package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/router"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

func plan() router.Plan {
	return router.Plan{
		Workers: 4, Streams: 8, PrefixBlocks: 200, Tokens: 12, PromptTokens: 40, Gap: 10 * time.Millisecond, Duration: time.Second, Decisions: 200,
		Mesh: processes.Plan{StartTimeout: time.Minute},
	}
}

// measure measures with the bundled model.
func measure(ctx context.Context, t *testing.T, p router.Plan, said func(string)) (*router.Result, error) {
	t.Helper()
	dir, err := modeldir.Find("")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := model.LoadSpec(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	p.Mesh.Arguments = []string{"--model", dir}
	return router.Measure(ctx, p, spec, words, said)
}

// The rate of requests is that at which they end: those count that began before the window.
func TestRequestsThatCount(t *testing.T) {
	for _, c := range []struct {
		began, ended bool
		want         int64
	}{{true, true, 1}, {false, true, 1}, {true, false, 0}, {false, false, 0}} {
		if got, err := router.Counted(t.Context(), c.began, c.ended); err != nil || got != c.want {
			t.Errorf("began in it %v, ended in it %v: %d count, want %d: %v", c.began, c.ended, got, c.want, err)
		}
	}
}

func TestMeasure(t *testing.T) {
	benchtest.Children(t)
	for _, name := range []string{"grpc", "openai", "grpc closed", "openai closed"} {
		t.Run(name, func(t *testing.T) {
			p := plan()
			api, closed, _ := strings.Cut(name, " ")
			p.TLS, p.Auth = closed != "", closed != ""
			if p.OpenAI = api == "openai"; !p.OpenAI {
				p.Connections = 2
			}
			var said []string
			r, err := measure(t.Context(), t, p, func(line string) { said = append(said, line) })
			if err != nil {
				t.Fatal(err)
			}
			if r.API != api || r.TLS != p.TLS || r.Auth != p.Auth || len(said) != 3 {
				t.Errorf("%+v, said %q", r, said)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var keys map[string]any
			if err := json.Unmarshal(text, &keys); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{
				"decisions_per_s", "index_ms", "index_us_max", "decision_us_p50", "decision_us_p99", "tokens_per_s", "tokens_per_cpu_s", "cpu_ms_per_request",
				"added_ttft_ms_p50", "added_ttft_ms_p99", "added_token_us_p50", "added_token_us_p99", "rss_mbytes", "requests_per_s", "allocations_per_token",
			} {
				if value, is := keys[key].(float64); !is || value <= 0 {
					t.Errorf("%s is %v", key, keys[key])
				}
			}
			if r.TokensPerS > 1.2*r.PlannedTokensPerS {
				t.Errorf("%v tokens a second came of %v", r.TokensPerS, r.PlannedTokensPerS)
			}
		})
	}
}

// Without a token in the measured time there is a result, which is not valid.
func TestMeasureWithoutTokens(t *testing.T) {
	benchtest.Children(t)
	p := plan()
	p.Streams, p.Gap, p.Duration = 1, time.Minute, 100*time.Millisecond
	r, err := measure(t.Context(), t, p, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(r); err != nil || r.Valid || r.TokensPerS != 0 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	benchtest.Children(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := plan()
	p.Duration = time.Minute
	_, err := measure(ctx, t, p, func(line string) {
		if strings.HasPrefix(line, "measuring") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestARouterThatCannotStart(t *testing.T) {
	benchtest.Children(t)
	p := plan()
	p.Decisions = 100
	p.Streams = 8000
	p.Workers = 2
	p.Mesh.Binary = "/bin/false"
	if _, err := measure(t.Context(), t, p, func(string) {}); err == nil || !strings.Contains(err.Error(), "router-1 ended before it was ready") {
		t.Errorf("the error is %v", err)
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*router.Plan){
		"--workers: 1 is outside 2":       func(p *router.Plan) { p.Workers = 1 },
		"--streams: 0 is outside 1":       func(p *router.Plan) { p.Streams = 0 },
		"--prefix-blocks: -1 is outside":  func(p *router.Plan) { p.PrefixBlocks = -1 },
		"--tokens: 1 is outside 2":        func(p *router.Plan) { p.Tokens = 1 },
		"--prompt: 0 is outside 1":        func(p *router.Plan) { p.PromptTokens = 0 },
		"--itl: 0s is outside 1ms":        func(p *router.Plan) { p.Gap = 0 },
		"--duration: 1ms is outside":      func(p *router.Plan) { p.Duration = time.Millisecond },
		"--decisions: 1 is outside 100":   func(p *router.Plan) { p.Decisions = 1 },
		"--auth: keys cross":              func(p *router.Plan) { p.Auth = true },
		"--prefix-blocks: 1048577 is out": func(p *router.Plan) { p.PrefixBlocks = router.MaxPrefixBlocks + 1 },
	} {
		p := plan()
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := plan()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if err := p.FitsContext("m", 52); err != nil {
		t.Error(err)
	}
	if err := p.FitsContext("m", 51); err == nil || !strings.Contains(err.Error(), "exceed the 51 of m's context") {
		t.Error(err)
	}
}
