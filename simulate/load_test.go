package simulate_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/simulate"
)

// sent runs requests on a small cluster.
func sent(t *testing.T, load simulate.Load) []*record.Record {
	t.Helper()
	cluster, err := simulate.New(config(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	load.RequestTimeout, load.DrainTimeout = time.Minute, time.Minute
	got, err := cluster.Run(load)
	if err != nil {
		t.Fatal(err)
	}
	return got.Records
}

// Text has a token for every four bytes, or those of a tokenizer; what prompts share is cached,
// and so is what was said before in a conversation.
func TestText(t *testing.T) {
	words := func(text string, special bool) ([]int32, error) {
		var ids []int32
		if special {
			ids = append(ids, 1)
		}
		for _, word := range strings.Fields(text) {
			ids = append(ids, int32(len(word)))
		}
		return ids, nil
	}
	shared := strings.Repeat("a word ", 64)
	for name, test := range map[string]struct {
		tokenize func(string, bool) ([]int32, error)
		prompts  []string
		talk     bool // the prompts are one conversation's
		want     []int
		cached   int // of the last
	}{
		"four bytes":        {nil, []string{"abcdefgh", "abcdefghi"}, false, []int{2, 3}, 0},
		"a shared prefix":   {nil, []string{shared + "one", shared + "another"}, false, []int{113, 114}, 96},
		"a tokenizer":       {words, []string{"one two three"}, false, []int{4}, 0},
		"its shared prefix": {words, []string{shared + "one", shared + "another"}, false, []int{130, 130}, 128},
		"a conversation":    {nil, []string{shared, shared + "more"}, true, []int{112, 112 + 40 + 1}, 128},
		"its words":         {words, []string{shared, shared + "and more"}, true, []int{129, 129 + 40 + 2}, 160},
	} {
		t.Run(name, func(t *testing.T) {
			var requests workload.List
			for i, text := range slices.Backward(test.prompts) {
				q := &workload.Request{Due: time.Duration(i) * 10 * time.Second, Prompt: workload.Prompt{Text: text}, MaxTokens: 40, Exact: true}
				if test.talk && len(requests) > 0 {
					next := requests[0]
					q.Then = func(workload.Answer) (*workload.Request, time.Duration) { return next, time.Second }
					requests = nil
				}
				requests = append(workload.List{q}, requests...)
			}
			records := sent(t, simulate.Load{Source: &requests, Tokenize: test.tokenize})
			var got []int
			for _, r := range records {
				got = append(got, r.PromptTokens)
			}
			if last := records[len(records)-1].CachedTokens; !slices.Equal(got, test.want) || last != test.cached {
				t.Errorf("prompts of %v tokens, %d of the last cached; want %v and %d", got, last, test.want, test.cached)
			}
		})
	}
}

// A conversation whose user thinks is not in flight, and a run does not end before its turns.
func TestThinking(t *testing.T) {
	for name, load := range map[string]simulate.Load{
		"for a time":                  {Source: source(t, 5, 20*time.Second, "--turns=3", "--think=3s", "--prompt-tokens=20", "--output-tokens=5", "--seed=1"), Duration: 20 * time.Second, InFlightLimit: 8},
		"until the conversation ends": {Source: one(t), InFlightLimit: 1},
	} {
		t.Run(name, func(t *testing.T) {
			records := sent(t, load)
			turns := 0
			for _, r := range records {
				if r.Outcome != record.Completed {
					t.Fatalf("%v: %s", r.Outcome, r.Error)
				}
				turns = max(turns, r.Turn+1)
			}
			if turns != 3 {
				t.Errorf("%d requests of %d turns", len(records), turns)
			}
		})
	}
}

// one is a conversation of three turns.
func one(t *testing.T) workload.Source {
	first, err := source(t, 5, 20*time.Second, "--turns=3", "--think=3s", "--prompt-tokens=20", "--output-tokens=5", "--seed=1").Next()
	if err != nil {
		t.Fatal(err)
	}
	return &workload.List{first}
}

// A run ends early when there is enough.
func TestEnough(t *testing.T) {
	var requests workload.List
	for i := range 50 {
		requests = append(requests, &workload.Request{Due: time.Duration(i) * 100 * time.Millisecond, Prompt: workload.Prompt{Text: "a prompt"}, MaxTokens: 20, Exact: true})
	}
	ended := 0
	records := sent(t, simulate.Load{Source: &requests, Enough: func(r *record.Record) bool {
		if r.Outcome != record.Completed || r.OutputTokens != 20 {
			t.Errorf("a request ended as %v with %d tokens", r.Outcome, r.OutputTokens)
		}
		ended++
		return ended == 10
	}})
	if completed := slices.DeleteFunc(slices.Clone(records), func(r *record.Record) bool { return r.Outcome != record.Completed }); ended != 10 || len(completed) != 10 || len(records) == 50 {
		t.Errorf("%d had ended, %d of %d are complete", ended, len(completed), len(records))
	}
}

// A request that runs when the time is over was admitted, and is cut off then: what it waited is known.
func TestCutOff(t *testing.T) {
	cluster, err := simulate.New(config(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	var requests workload.List
	for _, tokens := range []int{10, 1000} {
		requests = append(requests, &workload.Request{Prompt: workload.Prompt{Text: "a prompt"}, MaxTokens: tokens, Exact: true})
	}
	got, err := cluster.Run(simulate.Load{Source: &requests, Duration: time.Second, Lasts: true, RequestTimeout: time.Minute, DrainTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r, last := got.Records[1], got.Samples[len(got.Samples)-1]
	if r.Outcome != record.Cancelled || r.End != got.Drained || r.End < time.Second || last.Admitted != 2 {
		t.Errorf("%v at %v of %v, %d admitted", r.Outcome, r.End, got.Drained, last.Admitted)
	}
}
