package speculation_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/speculation"
)

// slowFind is Find's definition: the last place where the end of the text stood before, of the
// longest run that did.
func slowFind(tokens []int32) (position, matched int) {
	for n := min(speculation.LongestMatch, len(tokens)-1); n >= speculation.ShortestMatch; n-- {
		for at := len(tokens) - 1; at >= n; at-- {
			if slices.Equal(tokens[at-n:at], tokens[len(tokens)-n:]) {
				return at, n
			}
		}
	}
	return 0, 0
}

func split(t *rapid.T, tokens []int32) speculation.Text {
	at := rapid.IntRange(0, len(tokens)).Draw(t, "prompt")
	return speculation.Text{Prompt: tokens[:at], Generated: tokens[at:]}
}

// TestLookup: what is found stood there; nearly everything that stood somewhere is found,
// however the text came and was divided; and drafts go on as the text did.
func TestLookup(t *testing.T) {
	missed, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 4), 1, 300).Draw(t, "tokens")
		var l speculation.Lookup
		for end := 0; end < len(tokens); {
			end = min(end+rapid.IntRange(1, 50).Draw(t, "more"), len(tokens))
			text := split(t, tokens[:end])
			for !l.Extend(text, rapid.IntRange(1, 20).Draw(t, "at once")) {
			}
			position, matched := l.Find(text)
			wantPosition, wantMatched := slowFind(tokens[:end])
			all++
			switch {
			case position == wantPosition && matched == wantMatched:
			case position == 0 || matched < wantMatched: // another run has its place
				missed++
			default:
				t.Fatalf("of %v found %d, %d the same; want %d, %d", tokens[:end], position, matched, wantPosition, wantMatched)
			}
			if position == 0 {
				continue
			}
			if !slices.Equal(tokens[position-matched:position], tokens[end-matched:end]) {
				t.Fatalf("of %v found %d, %d the same", tokens[:end], position, matched)
			}
			n := rapid.IntRange(0, 20).Draw(t, "drafts")
			drafts := text.AppendFrom([]int32{-1}, position, n)[1:]
			for i, draft := range drafts {
				// What reaches past the end goes on with itself.
				want := slices.Concat(tokens[:end], drafts)[position+i]
				if draft != want {
					t.Fatalf("draft %d of %v after %v is %d, want %d", i, drafts, tokens[:end], draft, want)
				}
			}
			if len(drafts) != n {
				t.Fatalf("%d drafts, want %d", len(drafts), n)
			}
		}
	})
	if missed*20 > all {
		t.Errorf("%d of %d look-ups missed a place", missed, all)
	}
}

// TestLookupIsBounded: a text far longer than the table is looked up without more memory, and
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
	if position, matched := l.Find(text); position != 299_010 || matched != speculation.LongestMatch {
		t.Errorf("found %d, %d the same", position, matched)
	}
	if n := testing.AllocsPerRun(10, func() {
		text.Generated = append(text.Generated[:0], 5)
		l.Extend(text, 1024)
		l.Find(text)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAcceptance(t *testing.T) {
	var all speculation.OfAll
	var a, b speculation.Acceptance
	first := a.Of(&all, 3)
	for range 100 {
		a.Verified(&all, 3, 4, 0)
	}
	if got := a.Of(&all, 3); got > 0.02 {
		t.Errorf("after 100 that were wrong it takes %v to be right", got)
	}
	if got := b.Of(&all, 3); got > 0.1 || got < a.Of(&all, 3) {
		t.Errorf("another sequence takes %v to be right", got)
	}
	if got := b.Of(&all, 4); got != first {
		t.Errorf("after a longer match %v, want %v", got, first)
	}
	for range 100 {
		a.Verified(&all, 3, 4, 4)
	}
	if got := a.Of(&all, 3); got < 0.9 || got >= 1 {
		t.Errorf("after 100 that were right it takes %v to be right", got)
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
		a.Verified(&all, 2, 4, right)
		sum += a.Of(&all, 2)
	}
	if mean := sum / n; math.Abs(mean-0.8) > 0.03 {
		t.Errorf("takes %v to be right, want 0.8", mean)
	}
}

func TestLengths(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []speculation.Candidate
		sequences  int
		time       speculation.StepTime
		want       []int
	}{
		{"nothing is known of time", []speculation.Candidate{{Acceptance: 0.5, Most: 4}}, 1, speculation.StepTime{}, []int{4}},
		{"drafts are free", []speculation.Candidate{{Acceptance: 0.1, Most: 4}}, 1, speculation.StepTime{AloneMs: 10}, []int{4}},
		{"a draft costs a step", []speculation.Candidate{{Acceptance: 0.9, Most: 4}}, 1, speculation.StepTime{AloneMs: 10, DraftMs: 10}, []int{0}},
		// A draft costs a tenth: of the first, 0.5 tokens, of the third, 0.125; after those it
		// would have to give about 0.14.
		{"a draft costs a tenth", []speculation.Candidate{{Acceptance: 0.5, Most: 8}}, 1, speculation.StepTime{AloneMs: 10, DraftMs: 1}, []int{2}},
		{"the likelier one gets more", []speculation.Candidate{{Acceptance: 0.3, Most: 8}, {Acceptance: 0.9, Most: 8}}, 2, speculation.StepTime{AloneMs: 10, DraftMs: 1}, []int{0, 8}},
		{"in a large batch there are fewer", []speculation.Candidate{{Acceptance: 0.5, Most: 8}}, 10, speculation.StepTime{AloneMs: 20, DraftMs: 1}, []int{0}},
		{"no more than there may be", []speculation.Candidate{{Acceptance: 1, Most: 3}, {Acceptance: 0, Most: 3}, {Acceptance: 0.5}}, 3, speculation.StepTime{AloneMs: 10, DraftMs: 0.1}, []int{3, 0, 0}},
	} {
		speculation.Lengths(c.candidates, c.sequences, c.time)
		var got []int
		for _, candidate := range c.candidates {
			got = append(got, candidate.Drafts)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestLengthsDoNotLose: whatever the acceptance and the times, the step is expected to give no
// fewer tokens a second than without drafts.
func TestLengthsDoNotLose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 10).Draw(t, "candidates")
		candidates := make([]speculation.Candidate, n)
		for i := range candidates {
			candidates[i] = speculation.Candidate{Acceptance: rapid.Float64Range(0, 1).Draw(t, "acceptance"), Most: rapid.IntRange(0, 15).Draw(t, "most")}
		}
		sequences := n + rapid.IntRange(0, 20).Draw(t, "others")
		times := speculation.StepTime{AloneMs: rapid.Float64Range(0.01, 100).Draw(t, "alone"), DraftMs: rapid.Float64Range(0, 20).Draw(t, "draft")}
		speculation.Lengths(candidates, sequences, times)
		tokens, ms := float64(sequences), times.AloneMs
		for _, c := range candidates {
			if c.Drafts < 0 || c.Drafts > c.Most {
				t.Fatalf("%d drafts of %d", c.Drafts, c.Most)
			}
			for j := 1; j <= c.Drafts; j++ {
				tokens += math.Pow(c.Acceptance, float64(j))
			}
			ms += times.DraftMs * float64(c.Drafts)
		}
		if alone := float64(sequences) / times.AloneMs; tokens/ms < alone*(1-1e-9) {
			t.Fatalf("%v tokens/ms, without drafts %v: %+v", tokens/ms, alone, candidates)
		}
	})
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
