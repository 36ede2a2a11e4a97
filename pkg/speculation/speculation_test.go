package speculation_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/speculation"
)

// slowNext is Next's definition: the last eight places of the last token vote for what followed them, each with
// 4 times the weight for each token before it that is the same too, to four, and 0.8 times for each later place.
func slowNext(tokens []int32) (token int32, ok bool) {
	votes, order := map[int32]float64{}, []int32(nil)
	weight, places := 1.0, 0
	for at := len(tokens) - 2; at >= 0 && places < 8; at-- {
		same := 0
		for same < 4 && same <= at && tokens[at-same] == tokens[len(tokens)-1-same] {
			same++
		}
		if same == 0 {
			continue
		}
		if votes[tokens[at+1]] == 0 {
			order = append(order, tokens[at+1])
		}
		votes[tokens[at+1]] += weight * math.Pow(4, float64(same))
		weight *= 0.8
		places++
	}
	best := 0.0
	for _, t := range order {
		if votes[t] > best {
			token, best = t, votes[t]
		}
	}
	return token, best > 0
}

func split(t *rapid.T, tokens []int32) speculation.Text {
	at := rapid.IntRange(0, len(tokens)).Draw(t, "prompt")
	return speculation.Text{Prompt: tokens[:at], Generated: tokens[at:]}
}

// TestLookup: drafts are those of the definition, however the text came and was divided. Places are those of the text
// alone, and drafts are compared with them like tokens of it.
func TestLookup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 4), 1, 300).Draw(t, "tokens")
		var l speculation.Lookup
		for end := 0; end < len(tokens); {
			end = min(end+rapid.IntRange(1, 50).Draw(t, "more"), len(tokens))
			text := split(t, tokens[:end])
			for !l.Extend(text, rapid.IntRange(1, 20).Draw(t, "at once")) {
			}
			got, _, ok := l.Next(text, nil)
			if want, is := slowNext(tokens[:end]); ok != is || ok && math.Abs(float64(got-want)) > 0 {
				t.Fatalf("after %v comes %d (%v), want %d (%v)", tokens[:end], got, ok, want, is)
			}
			if !ok {
				continue
			}
			drafts := []int32{got}
			for len(drafts) < 5 {
				next, kind, ok := l.Next(text, drafts)
				if !ok {
					break
				}
				if kind == speculation.ByModel || !slices.Contains(tokens[:end], next) {
					t.Fatalf("after %v and %v comes %d, of kind %d", tokens[:end], drafts, next, kind)
				}
				drafts = append(drafts, next)
			}
		}
	})
}

// TestLookupRepeats: what a text repeats goes on as it did, and nothing is drafted after a token that is new.
func TestLookupRepeats(t *testing.T) {
	text := speculation.Text{Prompt: []int32{7, 1, 2, 3, 4, 5, 6, 9, 1, 8}, Generated: []int32{7, 1, 2, 3}}
	var l speculation.Lookup
	l.Extend(text, 100)
	var drafts []int32
	for range 4 {
		token, _, ok := l.Next(text, drafts)
		if !ok {
			t.Fatalf("nothing after %v", drafts)
		}
		drafts = append(drafts, token)
	}
	if !slices.Equal(drafts, []int32{4, 5, 6, 9}) {
		t.Errorf("drafts are %v", drafts)
	}
	text.Generated = append(text.Generated, 100)
	l.Extend(text, 100)
	if token, _, ok := l.Next(text, nil); ok {
		t.Errorf("after a new token comes %d", token)
	}
}

// TestLookupIsBounded: a text far longer than the tables is looked up without more memory, and
// its end is known.
func TestLookupIsBounded(t *testing.T) {
	tokens := make([]int32, 300_000)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % 30011)
	}
	tokens = append(tokens, tokens[299_000:299_010]...)
	text := speculation.Text{Prompt: tokens}
	var l speculation.Lookup
	for !l.Extend(text, 1024) {
	}
	if got, _, ok := l.Next(text, nil); !ok || got != tokens[299_010] {
		t.Errorf("after the end comes %d (%v), want %d", got, ok, tokens[299_010])
	}
	if n := testing.AllocsPerRun(10, func() {
		text.Generated = append(text.Generated[:0], 5)
		l.Extend(text, 1024)
		l.Next(text, nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// kind is one of drafts that were looked up.
const kind speculation.Kind = 3

func TestAcceptance(t *testing.T) {
	var all speculation.OfAll
	var a, b speculation.Acceptance
	four := []speculation.Kind{kind, kind, kind, kind}
	for range 100 {
		a.Verified(&all, four, 0)
	}
	if got := a.Of(&all, kind); got > 0.02 {
		t.Errorf("after 100 that were wrong it takes %v to be right", got)
	}
	if got := b.Of(&all, kind); got > 0.1 || got < a.Of(&all, kind) {
		t.Errorf("another sequence takes %v to be right", got)
	}
	if got := b.Of(&all, kind+1); got > 0.1 {
		t.Errorf("of another kind it takes %v", got)
	}
	a.Verified(&all, []speculation.Kind{kind + 1, kind + 1, kind + 1, kind + 1}, 4)
	if got := b.Of(&all, kind+1); got < 0.5 {
		t.Errorf("of another kind of which four were right it takes %v", got)
	}
	for range 100 {
		a.Verified(&all, four, 4)
	}
	if got := a.Of(&all, kind); got < 0.9 || got > 1 {
		t.Errorf("after 100 that were right it takes %v to be right", got)
	}
	// A sequence whose drafts are wrong has none before long, whatever those of others are.
	wrong := 0
	for ; b.Of(&all, kind) > 0.25; wrong++ {
		b.Verified(&all, four[:1], 0)
	}
	if wrong > 20 {
		t.Errorf("%d drafts that are wrong", wrong)
	}
}

// TestAcceptanceOfSome: of four drafts each of which is right in 80 of 100 cases if those
// before it are, that is what is found.
func TestAcceptanceOfSome(t *testing.T) {
	var all speculation.OfAll
	var a speculation.Acceptance
	var sum float64
	state := uint64(1)
	const n = 20000
	for range n {
		right := 0
		for right < 4 {
			state = state*6364136223846793005 + 1442695040888963407
			if state>>33%100 >= 80 {
				break
			}
			right++
		}
		a.Verified(&all, []speculation.Kind{kind, kind, kind, kind}, right)
		sum += a.Of(&all, kind)
	}
	if mean := sum / n; math.Abs(mean-0.8) > 0.03 {
		t.Errorf("takes %v to be right, want 0.8", mean)
	}
}

func TestLengths(t *testing.T) {
	linear := func(base, each float64) func(int) float64 {
		return func(tokens int) float64 { return base + each*float64(tokens) }
	}
	for _, c := range []struct {
		name       string
		candidates []speculation.Candidate
		sequences  int
		left       int
		ms         func(int) float64
		want       []int
	}{
		{"nothing is known of time", []speculation.Candidate{{Chances: []float64{0.5}, Most: 4}}, 1, 99, linear(0, 0), []int{0}},
		{"drafts are free", []speculation.Candidate{{Chances: []float64{0.3}, Most: 4}}, 1, 99, linear(10, 0), []int{4}},
		{"a draft costs a step", []speculation.Candidate{{Chances: []float64{0.9}, Most: 4}}, 1, 99, linear(0, 10), []int{0}},
		// 1/10, 1.5/11, 1.75/12, 1.875/13: the second is the last that helps.
		{"a draft costs a tenth", []speculation.Candidate{{Chances: []float64{0.5}, Most: 8}}, 1, 99, linear(9, 1), []int{2}},
		{"the likelier one gets them", []speculation.Candidate{{Chances: []float64{0.3}, Most: 8}, {Chances: []float64{0.9}, Most: 5}}, 2, 99, linear(8, 1), []int{0, 5}},
		{"in a large batch there are none", []speculation.Candidate{{Chances: []float64{0.5}, Most: 8}}, 10, 99, linear(10, 1), []int{0}},
		// 1/10, 1.9/11, 1.9 + 0.9*0.1/12: the second is too unlikely.
		{"each has its chance", []speculation.Candidate{{Chances: []float64{0.9, 0.1, 1}, Most: 8}}, 1, 99, linear(9, 1), []int{1}},
		{"no chance is known", []speculation.Candidate{{Most: 8}}, 1, 99, linear(10, 0), []int{0}},
		{"no more than fit", []speculation.Candidate{{Chances: []float64{0.9}, Most: 3}, {Chances: []float64{0.8}, Most: 3}}, 2, 3, linear(10, 0), []int{2, 1}},
		{"none fits", []speculation.Candidate{{Chances: []float64{0.9}, Most: 3}}, 2, -1, linear(10, 0), []int{0}},
		{"four cost as much as one", []speculation.Candidate{{Chances: []float64{0.8}, Most: 8}}, 1, 99, func(tokens int) float64 {
			return 10 + 10*float64((tokens+2)/4)
		}, []int{4}},
	} {
		var p speculation.Planner
		p.Lengths(c.candidates, c.sequences, c.left, c.ms)
		var got []int
		for _, candidate := range c.candidates {
			got = append(got, candidate.Drafts)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestLengthsAreTheBest: no other lengths promise more tokens a second, whatever steps take, and
// those that do not promise more than none are none.
func TestLengthsAreTheBest(t *testing.T) {
	var p speculation.Planner
	rapid.Check(t, func(t *rapid.T) {
		chances := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 5)
		candidates := []speculation.Candidate{
			{Chances: chances.Draw(t, "first"), Most: rapid.IntRange(0, 5).Draw(t, "most of the first")},
			{Chances: chances.Draw(t, "second"), Most: rapid.IntRange(0, 5).Draw(t, "most of the second")},
		}
		sequences := 2 + rapid.IntRange(0, 3).Draw(t, "others")
		ms := rapid.SliceOfN(rapid.Float64Range(1, 100), sequences+12, sequences+12).Draw(t, "ms")
		rate := func(a, b int) float64 {
			tokens := float64(sequences)
			for i, n := range []int{a, b} {
				chances, all := candidates[i].Chances, 1.0
				for j := range n {
					all *= chances[min(j, len(chances)-1)]
					tokens += all
				}
			}
			return tokens / ms[sequences+a+b]
		}
		p.Lengths(candidates, sequences, 99, func(tokens int) float64 { return ms[tokens] })
		got := rate(candidates[0].Drafts, candidates[1].Drafts)
		for a := range candidates[0].Most + 1 {
			for b := range candidates[1].Most + 1 {
				if better := rate(a, b); better > got*(1+1e-9) && better > 1.02*rate(0, 0)*(1+1e-9) {
					t.Fatalf("%+v: %v tokens/ms, and with %d and %d drafts %v", candidates, got, a, b, better)
				}
			}
		}
		if none := rate(0, 0); got < none {
			t.Fatalf("%+v: %v tokens/ms, without drafts %v", candidates, got, none)
		}
	})
}

// TestStepTimes: numbers of tokens of which steps are known have their own times, those between
// about what lies between, and longer contexts take longer.
func TestStepTimes(t *testing.T) {
	var s speculation.StepTimes
	if got := s.Ms(3, 100); got != 0 {
		t.Errorf("before the first step %v ms", got)
	}
	// Up to 8 tokens a step takes 10 ms, above that 30, and 1 ms for each 100 of context.
	at := func(tokens, contexts int) float64 {
		ms := 10.0
		if tokens > 8 {
			ms = 30
		}
		return ms + float64(contexts)/100
	}
	for i := range 2000 {
		tokens, contexts := []int{1, 2, 4, 8, 9, 16}[i%6], 100+i*37%1000
		s.Observe(tokens, contexts, time.Duration(at(tokens, contexts)*float64(time.Millisecond)))
	}
	for _, tokens := range []int{1, 2, 4, 6, 8, 9, 12, 16} {
		for _, contexts := range []int{200, 900} {
			if got, want := s.Ms(tokens, contexts), at(tokens, contexts); math.Abs(got-want) > 0.2*want {
				t.Errorf("%d tokens, %d of context: %v ms, want about %v", tokens, contexts, got, want)
			}
		}
	}
	if far := s.Ms(1000, 200); far < s.Ms(16, 200) {
		t.Errorf("1000 tokens take %v ms", far)
	}
}

// TestStepTimesOfManyTokens: above the largest number of tokens that has a time of its own each one
// more costs something, also where that number is known.
func TestStepTimesOfManyTokens(t *testing.T) {
	var s speculation.StepTimes
	for range 10 {
		for _, tokens := range []int{128, 256} {
			s.Observe(tokens, 1000, time.Duration(tokens)*100*time.Microsecond)
		}
	}
	for tokens, want := range map[int]float64{256: 25.6, 257: 25.8, 384: 51.2} {
		if got := s.Ms(tokens, 1000); math.Abs(got-want) > 0.01*want {
			t.Errorf("%d tokens take %v ms, want about %v", tokens, got, want)
		}
	}
}

// TestBudget: trials cost no more than a small share of the time, and none is saved up for ever.
func TestBudget(t *testing.T) {
	var b speculation.Budget
	spent := 0.0
	for range 10_000 {
		b.Step(10, 4)
		if b.Spend(4) {
			spent += 4
		}
	}
	if share := spent / (10 * 10_000); share < 0.005 || share > 0.01 {
		t.Errorf("trials took %v of the time", share)
	}
	for range 1000 {
		b.Step(10, 4)
	}
	n := 0
	for b.Spend(4) {
		n++
	}
	if n != 4 {
		t.Errorf("%d trials were saved up", n)
	}
	if !b.Spend(0) || !b.Spend(-1) {
		t.Error("a trial that costs nothing is not made")
	}
}

// TestDisturbedSteps: steps that something else made longer, even most of them, do not count for
// what tokens cost, and what is slower for good is found out.
func TestDisturbedSteps(t *testing.T) {
	var s speculation.StepTimes
	observe := func(n int, ms ...float64) {
		for i := range n {
			s.Observe(1, 100, time.Duration(ms[i%len(ms)]*float64(time.Millisecond)))
		}
	}
	observe(300, 10, 60, 10.2, 35, 10.1, 200)
	if got := s.Ms(1, 100); got < 9 || got > 12 {
		t.Errorf("%v ms, want about 10", got)
	}
	observe(300, 20)
	if got := s.Ms(1, 100); got < 19 || got > 21 {
		t.Errorf("%v ms, want about 20", got)
	}
}

// TestStepsGrowByWhatIsKnown: a worker that knows no larger steps does not pay for very many drafts at
// once to learn that they cost as much as they give.
func TestStepsGrowByWhatIsKnown(t *testing.T) {
	const sequences, drafts = 8, 8
	for name, c := range map[string]struct {
		at         func(tokens int) float64
		acceptance float64
		least      float64 // of the rate without drafts
	}{
		"each token costs the same": {func(tokens int) float64 { return 4.5 * float64(tokens) }, 0.8, 0.97},
		"few are right":             {func(tokens int) float64 { return 37 + 3*float64(tokens-sequences) }, 0.3, 0.97},
		"eight at a time":           {func(tokens int) float64 { return 25*math.Ceil(float64(tokens)/8) + 10 }, 0.3, 0.96},
	} {
		var steps speculation.StepTimes
		var p speculation.Planner
		var tokens, ms float64
		for range 64 {
			var candidates [sequences]speculation.Candidate
			for i := range candidates {
				candidates[i] = speculation.Candidate{Chances: []float64{c.acceptance}, Most: drafts}
			}
			if steps.Known(sequences) {
				p.Lengths(candidates[:], sequences, steps.Reach(sequences), func(n int) float64 { return steps.Ms(n, 1000) })
			}
			size := sequences
			tokens += sequences
			for _, candidate := range candidates {
				size += candidate.Drafts
				for j := 1; j <= candidate.Drafts; j++ {
					tokens += math.Pow(c.acceptance, float64(j))
				}
			}
			ms += c.at(size)
			steps.Observe(size, 1000, time.Duration(c.at(size)*float64(time.Millisecond)))
		}
		if rate := tokens / ms * c.at(sequences) / sequences; rate < c.least {
			t.Errorf("%s: %.3f of the rate without drafts", name, rate)
		}
	}
}

// TestADisturbedFirstStep: a size whose only step was disturbed is tried again soon.
func TestADisturbedFirstStep(t *testing.T) {
	var steps speculation.StepTimes
	var p speculation.Planner
	for range 4 {
		steps.Observe(1, 100, 10*time.Millisecond)
	}
	steps.Observe(2, 100, 60*time.Millisecond)
	for n := 1; ; n++ {
		candidates := []speculation.Candidate{{Chances: []float64{0.8}, Most: 1}}
		if p.Lengths(candidates, 1, steps.Reach(1), func(n int) float64 { return steps.Ms(n, 100) }); candidates[0].Drafts > 0 {
			break
		}
		if n > 64 {
			t.Fatal("64 steps without another draft")
		}
		steps.Observe(1, 100, 10*time.Millisecond)
	}
	for range 8 {
		steps.Observe(2, 100, 10*time.Millisecond)
	}
	if got := steps.Ms(2, 100); got > 11 {
		t.Errorf("two tokens are taken to cost %v ms", got)
	}
}

// TestReach: where more always pays, few steps find that out.
func TestReach(t *testing.T) {
	var steps speculation.StepTimes
	n := 0
	for size := 1; size < 65; n++ {
		size = 1 + steps.Reach(1)
		steps.Observe(size, 100, time.Millisecond)
	}
	if n > 7 {
		t.Errorf("%d steps until one of 65 tokens", n)
	}
}

// TestTrial: a draft is tried now and then, the more rarely the longer it was in vain.
func TestTrial(t *testing.T) {
	var trial speculation.Trial
	tries := func(steps int, right bool) (n int) {
		for range steps {
			if trial.Due() {
				trial.Tried(right)
				n++
			}
		}
		return n
	}
	if n := tries(10_000, false); n < 30 || n > 60 {
		t.Errorf("%d trials in 10000 steps", n)
	}
	tries(1000, true)
	if n := tries(160, true); n != 10 {
		t.Errorf("%d trials in 160 steps after one that was right", n)
	}
}

// TestDraftTimes: a draft takes what most of the shorter steps say, by how many sequences draft
// together; where nothing is known the nearest number of them counts.
func TestDraftTimes(t *testing.T) {
	var d speculation.DraftTimes
	d.Observe(1, 0, time.Second) // made none
	if got := d.Ms(1); got != 0 {
		t.Errorf("%v ms before the first draft", got)
	}
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	d.Observe(1, 1, ms(500)) // after a long prompt
	for i := range 200 {
		d.Observe(1, 1+i%3, ms(2*float64(1+i%3)))
		d.Observe(8, 8, ms(4))
		if i%5 == 0 {
			d.Observe(1, 2, ms(90))
		}
	}
	for sequences, want := range map[int]float64{0: 2, 1: 2, 2: 2, 8: 0.5, 15: 0.5, 100: 0.5, 1 << 20: 0.5} {
		if got := d.Ms(sequences); math.Abs(got-want) > 0.15*want {
			t.Errorf("%d sequences: %v ms, want about %v", sequences, got, want)
		}
	}
	for range 200 {
		d.Observe(1, 1, ms(3))
	}
	if got := d.Ms(1); math.Abs(got-3) > 0.2 {
		t.Errorf("%v ms, want about 3", got)
	}
}

// TestTrialsThatCostMore: what a trial cost more than was spent is paid before there is another.
func TestTrialsThatCostMore(t *testing.T) {
	var b speculation.Budget
	cost := 0.0
	for range 10_000 {
		b.Step(10, 4)
		if b.Spend(4) {
			b.Charge(100)
			cost += 104
		}
	}
	b.Charge(-1000) // it cost less: nothing is given back
	if share := cost / (10 * 10_000); share < 0.005 || share > 0.01 {
		t.Errorf("trials took %v of the time", share)
	}
}
