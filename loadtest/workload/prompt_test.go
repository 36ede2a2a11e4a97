package workload_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

var sameButThen = cmpopts.IgnoreFields(workload.Request{}, "Then")

// Equal seeds give equal requests, different seeds different ones. A later step of a
// sweep has the same lengths and times with other prompts.
func TestSameSeed(t *testing.T) {
	for _, kind := range []string{"ids", "text"} {
		args := []string{"--prompt-kind=" + kind, "--prompt-tokens=uniform:20-200", "--output-tokens=exp:50", "--class=a=1", "--class=b=2", "--turns=uniform:1-3", "--shared-prefix-tokens=20", "--shared-prefixes=3", "--temperature=1"}
		run := func(seed string, step int) []*workload.Request {
			params := server
			params.Step = step
			return take(t, sourceOf(t, params, append(args, "--seed="+seed)...), 200)
		}
		first := run("5", 0)
		if diff := cmp.Diff(first, run("5", 0), sameButThen); diff != "" {
			t.Errorf("%s: the same seed gives other requests:\n%s", kind, diff)
		}
		other, step := run("6", 0), run("5", 1)
		for i, q := range first {
			if cmp.Equal(q.Prompt, other[i].Prompt) || q.Due == other[i].Due || q.Seed == other[i].Seed {
				t.Fatalf("%s: request %d is alike with another seed", kind, i)
			}
			if cmp.Equal(q.Prompt, step[i].Prompt) {
				t.Fatalf("%s: request %d has the same prompt in another step", kind, i)
			}
			if diff := cmp.Diff(q, step[i], sameButThen, cmpopts.IgnoreFields(workload.Request{}, "Prompt")); diff != "" {
				t.Fatalf("%s: request %d differs in another step by more than its prompt:\n%s", kind, i, diff)
			}
		}
	}
}

// Prompts and outputs respect their distributions' bounds and the context, and ids are in
// the vocabulary.
func TestBoundsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocabulary := rapid.IntRange(40, 200_000).Draw(t, "vocabulary")
		prefix := rapid.IntRange(0, 30).Draw(t, "prefix")
		context := rapid.IntRange(prefix+2, 3000).Draw(t, "context")
		least := rapid.IntRange(1, 1500).Draw(t, "least")
		most := rapid.IntRange(least, 1500).Draw(t, "most")
		output := rapid.SampledFrom([]string{"64", "normal:100,200", "lognormal:300,900", "exp:200", "uniform:1-1500"}).Draw(t, "output")
		params := workload.Params{Rate: 1, VocabularySize: vocabulary, ContextTokens: context}
		source := sourceOf(t, params, fmt.Sprintf("--prompt-tokens=uniform:%d-%d", least, most), "--output-tokens="+output, fmt.Sprintf("--shared-prefix-tokens=%d", prefix))
		cut, surely := 0, 0
		for i, q := range take(t, source, 50) {
			tokens := len(q.Prompt.TokenIDs) - prefix
			if tokens < 1 || tokens > most || q.MaxTokens < 1 || prefix+tokens+q.MaxTokens > context {
				t.Fatalf("request %d: %d + %d tokens and %d wanted of %d", i, prefix, tokens, q.MaxTokens, context)
			}
			if prefix+tokens+q.MaxTokens == context {
				cut++ // at most: one may just fit
				if output != "64" || q.MaxTokens != 64 {
					surely++ // many just fit only if there are few lengths
				}
			} else if tokens < least {
				t.Fatalf("request %d has %d tokens, less than %d, and room", i, tokens, least)
			}
			for _, id := range q.Prompt.TokenIDs {
				if int(id) >= vocabulary {
					t.Fatalf("id %d of a vocabulary of %d has it not", id, vocabulary)
				}
			}
		}
		warner, ok := source.(workload.Warner)
		if !ok {
			t.Fatal("the source gives no warnings")
		}
		var counted int
		if warnings := warner.Warnings(); len(warnings) > 0 {
			if _, err := fmt.Sscanf(warnings[0].String(), "%d of 50 requests were cut", &counted); err != nil {
				t.Fatalf("warnings %q", warnings)
			}
		}
		if counted > cut || counted == 0 && surely > 5 {
			t.Fatalf("%d requests fill the context, %d are said to be cut", cut, counted)
		}
	})
}

func TestMeans(t *testing.T) {
	for text, want := range map[string][2]float64{
		"300":               {300, 0},
		"uniform:100-900":   {500, 231.2},
		"normal:512,128":    {512, 128},
		"lognormal:512,256": {512, 256},
		"exp:200":           {200, 200},
	} {
		params := server
		params.ContextTokens = 0
		var sum, squares float64
		const n = 40_000
		for _, q := range take(t, sourceOf(t, params, "--prompt-tokens=1", "--output-tokens="+text, "--seed=2"), n) {
			sum += float64(q.MaxTokens)
			squares += float64(q.MaxTokens) * float64(q.MaxTokens)
		}
		mean := sum / n
		deviation := math.Sqrt(squares/n - mean*mean)
		if math.Abs(mean/want[0]-1) > 0.02 || math.Abs(deviation-want[1]) > 0.03*want[1] {
			t.Errorf("%s: mean %.1f, standard deviation %.1f, want %v", text, mean, deviation, want)
		}
	}
}

// Ids are uniform over the vocabulary: by the chi-squared statistic.
func TestUniformIDs(t *testing.T) {
	params := server
	params.VocabularySize = 100
	counts := make([]float64, params.VocabularySize)
	total := 0.0
	for _, q := range take(t, sourceOf(t, params, "--prompt-tokens=1001", "--output-tokens=1", "--seed=4"), 1000) {
		for _, id := range q.Prompt.TokenIDs {
			counts[id]++
			total++
		}
	}
	expected := total / float64(len(counts))
	chi := 0.0
	for _, count := range counts {
		chi += (count - expected) * (count - expected) / expected
	}
	freedom := float64(len(counts) - 1)
	if math.Abs(chi-freedom) > 6*math.Sqrt(2*freedom) {
		t.Errorf("chi-squared %f with %.0f degrees of freedom", chi, freedom)
	}
}

func TestSharedPrefixes(t *testing.T) {
	args := []string{"--shared-prefix-tokens=40", "--shared-prefixes=4", "--prompt-tokens=30", "--seed=1"}
	counts := map[string]int{}
	for _, q := range take(t, sourceOf(t, server, args...), 1000) {
		counts[fmt.Sprint(q.Prompt.TokenIDs[:40])]++
	}
	if len(counts) != 4 {
		t.Errorf("%d prefixes, want 4", len(counts))
	}
	for _, count := range counts {
		if count < 180 || count > 320 {
			t.Errorf("a prefix came %d times of 1000", count)
		}
	}
	q := take(t, sourceOf(t, server, append(args, "--prompt-kind=text")...), 1)[0]
	if len(q.Prompt.Chat) != 2 || q.Prompt.Chat[0].Role != "system" || q.Prompt.Chat[1].Role != "user" ||
		len(q.Prompt.Chat[0].Content) != 160 || q.Prompt.Text != q.Prompt.Chat[0].Content+"\n\n"+q.Prompt.Chat[1].Content {
		t.Errorf("a text prompt with a shared prefix: %+v", q.Prompt)
	}
}

func TestText(t *testing.T) {
	params := server
	params.Text = true
	firsts := map[string]bool{}
	for _, q := range take(t, sourceOf(t, params, "--prompt-tokens=uniform:50-500", "--prompt-kind=ids"), 100) {
		text := q.Prompt.Text
		firsts[text[:40]] = true
		if q.Prompt.TokenIDs != nil || len(text) < 200 || len(text) > 2000 || len(text)%4 != 0 || text[0] < 'A' || text[0] > 'Z' {
			t.Fatalf("%d bytes of text: %q", len(text), text)
		}
		if words := len(strings.Fields(text)); words < len(text)/8 || words > len(text)/3 {
			t.Fatalf("%d words in %q", words, text)
		}
	}
	if len(firsts) != 100 {
		t.Errorf("of 100 prompts %d begin alike", 100-len(firsts))
	}
	// The commonest word is twice as frequent as the second, by Zipf.
	words := map[string]int{}
	for _, q := range take(t, sourceOf(t, params, "--prompt-tokens=2000", "--seed=1"), 50) {
		for _, word := range strings.Fields(q.Prompt.Text) {
			words[strings.ToLower(strings.Trim(word, ".,"))]++
		}
	}
	if ratio := float64(words["the"]) / float64(words["of"]); ratio < 1.8 || ratio > 2.2 {
		t.Errorf("the %d, of %d", words["the"], words["of"])
	}
}

func TestTextFile(t *testing.T) {
	var book strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&book, "wörd%d ", i)
	}
	path := write(t, "book", book.String())
	params := server
	params.ContextTokens = 0
	for _, q := range take(t, sourceOf(t, params, "--text-file="+path, "--prompt-tokens=uniform:1-20000"), 100) {
		text := q.Prompt.Text
		if !utf8.ValidString(text) || !strings.HasPrefix(text, "w") || len(text) > 80000 {
			t.Fatalf("%d bytes: %.60q", len(text), text)
		}
		for _, piece := range strings.Split(text, "\n") {
			if !strings.Contains(book.String(), piece) {
				t.Fatalf("%.60q is not of the file", piece)
			}
		}
	}
	if _, err := parse("--text-file=" + write(t, "binary", strings.Repeat("line\n", 2000)+"\xff")); err == nil || !strings.Contains(err.Error(), "binary:2001: not UTF-8") {
		t.Errorf("bytes that are no text: %v", err)
	}
}

func TestClasses(t *testing.T) {
	source := sourceOf(t, server, "--seed=1", "--priority=9", "--tenant=acme", "--cache-salt=s", "--temperature=0.5", "--output-tokens=77",
		"--class=chat=3,prompt=uniform:10-20,priority=-1", "--class=batch=1,prompt=normal:100,0,output=5")
	if names := specOf(t, "--class=chat=3", "--class=batch=1").ClassNames(); !slices.Equal(names, []string{"chat", "batch"}) {
		t.Errorf("classes %q", names)
	}
	counts := map[string]int{}
	for _, q := range take(t, source, 4000) {
		counts[q.Class]++
		prompt, output, priority := len(q.Prompt.TokenIDs), 5, int32(9)
		least, most := 100, 100
		if q.Class == "chat" {
			least, most, output, priority = 10, 20, 77, -1
		}
		if prompt < least || prompt > most || q.MaxTokens != output || q.Priority != priority || q.Tenant != "acme" || q.CacheSalt != "s" || q.Temperature != 0.5 || !q.Exact {
			t.Fatalf("a request of class %s: %d tokens, %+v", q.Class, prompt, q)
		}
	}
	if math.Abs(float64(counts["chat"])-3000) > 6*math.Sqrt(4000*0.75*0.25) || counts["chat"]+counts["batch"] != 4000 {
		t.Errorf("classes %v, want 3 to 1", counts)
	}
}

// Sampling seeds differ between requests and are reproducible.
func TestSamplingSeeds(t *testing.T) {
	seen := map[uint64]bool{}
	for _, q := range take(t, sourceOf(t, server, "--seed=1", "--prompt-tokens=1"), 10000) {
		seen[q.Seed] = true
	}
	if len(seen) != 10000 {
		t.Errorf("%d seeds for 10000 requests", len(seen))
	}
}
