package workload_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// fataler is a test, or a property of rapid's.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// parse is a valid Spec of flags.
func parse(args ...string) (*workload.Spec, error) {
	var spec workload.Spec
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	spec.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return &spec, spec.Validate()
}

func specOf(t fataler, args ...string) *workload.Spec {
	t.Helper()
	spec, err := parse(args...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func sourceOf(t fataler, params workload.Params, args ...string) workload.Source {
	t.Helper()
	source, err := specOf(t, args...).New(params)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// take is the next n requests, fewer at the end.
func take(t fataler, source workload.Source, n int) []*workload.Request {
	t.Helper()
	var all []*workload.Request
	for len(all) < n {
		q, err := source.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, q)
	}
	return all
}

// server is the default server of the tests.
var server = workload.Params{Rate: 100, VocabularySize: 32000, ContextTokens: 4096}

// write makes a file of a test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRefusals(t *testing.T) {
	azure := write(t, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n")
	mooncake := write(t, "m.jsonl", `{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [1]}`)
	sharegpt := write(t, "s.json", `[]`)
	text := write(t, "text", strings.Repeat("some words ", 1000))
	for _, c := range []struct {
		args, want string
	}{
		{"--arrival=uniform", `--arrival "uniform": choose poisson, gamma, constant or ramp`},
		{"--burstiness=0.5", "--burstiness 0.5 is for --arrival gamma: add that"},
		{"--arrival=gamma --burstiness=0", "--burstiness is 0: choose 0.001 to"},
		{"--ramp-from=3", "--ramp-from 3 is for --arrival ramp"},
		{"--surge=1s+2s=3 --arrival=ramp", "--surge does not go with --arrival ramp"},
		{"--prompt-kind=words", `--prompt-kind "words": choose ids or text`},
		{"--prompt-kind=ids --text-file=" + text, "--text-file does not go with --prompt-kind ids"},
		{"--text-file=" + azure, "prompts would be too alike"},
		{"--text-file=/does/not/exist", "--text-file: open /does/not/exist"},
		{"--chars-per-token=NaN", "--chars-per-token is NaN: choose 0.5 to 32"},
		{"--shared-prefixes=2", "--shared-prefixes 2 needs --shared-prefix-tokens"},
		{"--shared-prefixes=0", "--shared-prefixes is 0: choose 1 or more"},
		{"--temperature=-1", "--temperature is -1: choose 0 or more"},
		{"--context-tokens=1", "--context-tokens is 1: choose 2 or more"},
		{"--speed=2", "add --trace FILE"},
		{"--prompt-tokens=empirical", "empirical lengths come from a trace: add --trace FILE"},
		{"--trace=/does/not/exist", "--trace: open /does/not/exist"},
		{"--trace-format=csv", `--trace-format "csv": choose auto, azure, mooncake or sharegpt`},
		{"--trace=" + azure + " --trace-format=mooncake --output-tokens=empirical", "a.csv:1:1: invalid character"},
		{"--trace=" + azure + " --prompt-tokens=5", "a replayed trace has its own lengths"},
		{"--trace=" + azure + " --class=a=1,output=5", "a replayed trace has its own lengths"},
		{"--trace=" + azure + " --speed=0", "--speed is 0: choose"},
		{"--trace=" + azure + " --turns=2", "do not go with a replayed azure trace"},
		{"--trace=" + azure + " --shared-prefix-tokens=2", "--shared-prefix-tokens does not go with a replayed trace"},
		{"--trace=" + azure + " --prompt-tokens=empirical --speed=2", "--speed is for a replayed trace"},
		{"--trace=" + mooncake + " --text-file=" + text, "--text-file does not go with a mooncake trace"},
		{"--trace=" + mooncake + " --trace-scale-lengths=0.01", "makes blocks of 5 tokens, too few to tell them apart: choose 0.03125 or more"},
		{"--trace=" + sharegpt + " --speed=2", "it has no times; give the rate"},
		{"--trace=" + sharegpt + " --prompt-kind=ids", "--prompt-kind ids does not go with a sharegpt trace"},
		{"--trace=" + sharegpt + " --output-tokens=empirical", "has no requests to draw lengths from"},
		{"--class=a", "the weight is missing: write NAME=WEIGHT"},
		{"--class==1", `a class cannot be named ""`},
		{"--class=a=0", `the weight "0" is not a number from 1e-06 to 1e+06`},
		{"--class=a=1 --class=a=2", "class a already exists"},
		{"--class=a=1,size=3", `a class has no setting "size"`},
		{"--class=a=1,prompt=normal:5", "normal has 1 parameters, but takes normal:MEAN,SD"},
		{"--class=a=1,priority=high", `the priority "high" is not a whole number`},
		{"--prompt-tokens=many", `"many" is not a number: write 512, uniform:100-900, normal:512,128`},
		{"--prompt-tokens=0", "0 is out of range, from 1 to 16777216"},
		{"--prompt-tokens=NaN", "out of range"},
		{"--prompt-tokens=uniform:5", "uniform has 1 parameters, but takes uniform:LEAST-MOST"},
		{"--prompt-tokens=uniform:9-5", "9 is more than 5"},
		{"--prompt-tokens=uniform:1.5-5", "the ends of uniform must be whole numbers"},
		{"--prompt-tokens=lognormal:5,x", `"x" is not a number`},
		{"--prompt-tokens=zipf:5", `no distribution is called "zipf"`},
		{"--prompt-tokens=empirical:5", "empirical takes no parameters"},
		{"--turns=empirical", `"empirical" is not a number`},
		{"--think=5", `"5" is not a duration: write 2s, uniform:1s-10s`},
		{"--think=2s", "each has only one turn: add --turns"},
		{"--think=exp:-5s", "out of range, from 0 to 24h"},
		{"--think=lognormal:0,1s", "the mean of lognormal must be above 0"},
	} {
		if _, err := parse(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.want)
		}
	}
}

func TestRefusalsOfARun(t *testing.T) {
	for _, c := range []struct {
		args   string
		params workload.Params
		want   string
	}{
		{"", workload.Params{}, "the rate is 0 requests a second: give a --rate above 0, or --concurrency"},
		{"", workload.Params{Rate: 1, Duration: -1}, "a negative parameter"},
		{"--arrival=ramp", workload.Params{Rate: 1}, "--arrival ramp needs a duration"},
		{"--prompt-kind=ids", workload.Params{Rate: 1}, "add --vocabulary-size, or use --prompt-kind text"},
		{"", workload.Params{Rate: 1, VocabularySize: 15}, "a vocabulary of 15 tokens: expected 16 to"},
		{"--shared-prefix-tokens=100", workload.Params{Rate: 1, ContextTokens: 101}, "leave room for a prompt and an answer"},
	} {
		if _, err := specOf(t, strings.Fields(c.args)...).New(c.params); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: error %v, want %q", c.args, c.params, err, c.want)
		}
	}
	var unchecked workload.Spec
	if _, err := unchecked.New(server); err == nil {
		t.Error("a Spec that was not validated makes a source")
	}
}

func TestDescribe(t *testing.T) {
	sharegpt := write(t, "s.json", `[]`)
	text := write(t, "text", strings.Repeat("some words ", 1000))
	mooncake := write(t, "m.jsonl", `{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [1]}`)
	params := server
	params.Duration = time.Minute
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"arrivals: poisson, 100 a second for 1m0s", "lengths: prompts of 512 tokens, answers of 128, exactly", "prompts: token ids, uniform over the vocabulary", "seed: 7"}},
		{"--surge=1m+30s=0 --surge=10s+20s=2", []string{"arrivals: poisson, 100 a second, times 2 from 10s to 30s, times 0 from 1m0s to 1m30s for 1m0s"}},
		{"--arrival=ramp --prompt-kind=text --exact=false", []string{"arrivals: ramp from 0 to 100 a second for 1m0s", "answers of 128, at most", "prompts: text of common words, 4 bytes taken for a token"}},
		{"--class=a=3,prompt=7 --class=b=1", []string{"class a, 75%: prompts of 7 tokens", "class b, 25%: prompts of 512 tokens"}},
		{"--turns=3 --think=exp:1s --shared-prefix-tokens=9", []string{"shared prefixes: 1 of 9 tokens", "conversations: turns 3, the next exp:1s after the answer"}},
		{"--speed=2 --trace-limit=10 --trace-scale-lengths=0.05 --trace=" + mooncake, []string{"arrivals: as recorded, 2 times as fast", "(mooncake), the first 10 requests, lengths times 0.05, prompts share blocks of 26 tokens, answers exactly as long as recorded"}},
		{"--arrival=gamma --burstiness=0.5 --text-file=" + text, []string{"arrivals: gamma of shape 0.5, 100 a second for 1m0s", "prompts: text cut out of " + text}},
		{"--turns=2 --class=a=1 --trace=" + sharegpt, []string{"arrivals: poisson", "classes by weight: a=1", "prompts: text as recorded", "conversations: turns 2 at most, the next at once"}},
		{"--output-tokens=empirical --trace=" + mooncake, []string{"prompts of the trace's (1 requests) tokens, answers of the trace's (1 requests)"}},
	} {
		got := strings.Join(specOf(t, append(strings.Fields(c.args), "--seed=7")...).Describe(params), "\n")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s:\n%s\nlacks %q", c.args, got, want)
			}
		}
	}
}

func TestDescribeClosedLoop(t *testing.T) {
	got := strings.Join(specOf(t).Describe(workload.Params{Concurrency: 8}), "\n")
	for _, want := range []string{"arrivals: closed loop, 8 at a time", "warning: the server does not say how long its context is", "prompts: text of common words"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
}

// The flags for vocabulary and context apply if the server reports none; otherwise the
// smaller value counts.
func TestLimitsByFlag(t *testing.T) {
	for _, c := range []struct {
		vocabulary, context int
		params              workload.Params
		below, within       int
	}{
		{100, 60, workload.Params{}, 100, 60},
		{100, 60, workload.Params{VocabularySize: 50, ContextTokens: 40}, 50, 40},
		{100, 60, workload.Params{VocabularySize: 500, ContextTokens: 400}, 100, 60},
		{0, 0, workload.Params{VocabularySize: 500, ContextTokens: 400}, 500, 400},
	} {
		c.params.Concurrency = 1
		source := sourceOf(t, c.params, "--prompt-tokens=300", "--output-tokens=300", fmt.Sprintf("--vocabulary-size=%d", c.vocabulary), fmt.Sprintf("--context-tokens=%d", c.context), "--seed=1")
		largest := 0
		for _, q := range take(t, source, 100) {
			if got := len(q.Prompt.TokenIDs) + q.MaxTokens; got != c.within {
				t.Fatalf("%+v: %d tokens, want %d", c, got, c.within)
			}
			for _, id := range q.Prompt.TokenIDs {
				largest = max(largest, int(id))
			}
		}
		if largest >= c.below || largest < c.below*9/10 {
			t.Errorf("%+v: the largest id is %d, want just under %d", c, largest, c.below)
		}
	}
}

// Without --seed each command has its own prompts, so none are in a prefix cache.
func TestSeeds(t *testing.T) {
	a, b := specOf(t), specOf(t)
	if a.Seed == 0 || a.Seed == b.Seed {
		t.Errorf("seeds %d and %d, want two", a.Seed, b.Seed)
	}
}

// A repeat of a run has its own arrivals, lengths, classes and turns; the first equals
// the run without repeats.
func TestRepeats(t *testing.T) {
	type drawn struct {
		due    time.Duration
		class  string
		tokens int
		more   bool
	}
	run := func(repeat int) [50]drawn {
		params := workload.Params{Rate: 10, VocabularySize: 1000, Repeat: repeat}
		var all [50]drawn
		for i, q := range take(t, sourceOf(t, params, "--seed=5", "--class=a=1", "--class=b=1", "--output-tokens=uniform:1-1000", "--turns=uniform:1-2"), len(all)) {
			all[i] = drawn{q.Due, q.Class, q.MaxTokens, q.Then != nil}
		}
		return all
	}
	runs := [3][50]drawn{run(0), run(1), run(2)}
	if again := run(1); again != runs[1] {
		t.Errorf("the repeat 1 is %v, then %v", runs[1], again)
	}
	for i, a := range runs {
		for k, b := range runs[:i] {
			var due, class, tokens, more int
			for n := range a {
				for _, same := range []struct {
					count *int
					is    bool
				}{{&due, a[n].due == b[n].due}, {&class, a[n].class == b[n].class}, {&tokens, a[n].tokens == b[n].tokens}, {&more, a[n].more == b[n].more}} {
					if same.is {
						*same.count++
					}
				}
			}
			if due > 0 || class == len(a) || tokens > 5 || more == len(a) {
				t.Errorf("runs %d and %d share %d moments, %d classes, %d lengths, %d turns of %d", k, i, due, class, tokens, more, len(a))
			}
		}
	}
	if _, err := specOf(t).New(workload.Params{Rate: 1, VocabularySize: 1000, Repeat: -1}); err == nil {
		t.Error("a repeat of -1")
	}
}

func TestClassShares(t *testing.T) {
	if shares := specOf(t).ClassShares(); shares != nil {
		t.Errorf("without classes %v", shares)
	}
	if shares := specOf(t, "--class=a=1", "--class=b=3").ClassShares(); len(shares) != 2 || shares["a"] != 0.25 || shares["b"] != 0.75 {
		t.Errorf("%v", shares)
	}
}
