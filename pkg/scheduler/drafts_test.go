package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// draftsConfig is one in which prompts and memory are in nobody's way.
func draftsConfig(drafts int) scheduler.Config {
	return scheduler.Config{
		BlockTokens: 4, ContextTokens: 400, MaxBatchTokens: 64, MaxSequences: 4, ChunkTokens: 32, MaxWaiting: 8, MaxDrafts: drafts,
	}
}

// engineDraftsConfig is draftsConfig where the engine makes the drafts.
func engineDraftsConfig(drafts int) scheduler.Config {
	config := draftsConfig(drafts)
	config.EngineDrafts = true
	return config
}

// bothWays runs a test with drafts of either kind.
func bothWays(t *testing.T, test func(t *testing.T, config func(drafts int) scheduler.Config)) {
	t.Run("looked up", func(t *testing.T) { test(t, draftsConfig) })
	t.Run("of the engine", func(t *testing.T) { test(t, engineDraftsConfig) })
}

// runDrafted generates 100 tokens for each of so many requests, each step taking as long as
// took says, and each draft of the engine as long as drafting.
func runDrafted(t *testing.T, config scheduler.Config, requests int, drafting time.Duration, took func(tokens int) time.Duration) *world {
	t.Helper()
	w := newWorld(t, 200, config)
	w.drafting, w.eager = drafting, true
	for i := range requests {
		w.submit(scheduler.Request{
			ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i % vocabulary), 1, 2, 3, 1, 2}, MaxTokens: 100, Sampling: sampler.Params{Seed: uint64(i)},
		})
	}
	for w.inFlight != nil {
		tokens := 0
		for _, work := range w.inFlight.Batch.Sequences {
			tokens += len(work.Tokens) + len(w.pages.draft(work, uint64(w.steps), w.eager))
		}
		w.finishStep(took(tokens))
	}
	w.finishAll()
	return w
}

// TestDraftsSaveSteps: where drafts cost nothing there are some, those that were right save a
// step each, and what became of them is told at the end.
func TestDraftsSaveSteps(t *testing.T) { bothWays(t, testDraftsSaveSteps) }

func testDraftsSaveSteps(t *testing.T, config func(int) scheduler.Config) {
	free := func(int) time.Duration { return 10 * time.Millisecond }
	without, with := runDrafted(t, config(0), 1, 0, free), runDrafted(t, config(3), 1, time.Millisecond, free)
	if without.drafts != 0 || with.accepted < 5 || with.accepted >= with.drafts {
		t.Errorf("%d drafts, %d right; without drafts %d", with.drafts, with.accepted, without.drafts)
	}
	if with.steps != without.steps-with.accepted {
		t.Errorf("%d steps, without drafts %d, and %d were right", with.steps, without.steps, with.accepted)
	}
	end := with.order[0].finished
	if end.Drafts != with.drafts || end.AcceptedDrafts != with.accepted {
		t.Errorf("at the end %d drafts, %d right; there were %d and %d", end.Drafts, end.AcceptedDrafts, with.drafts, with.accepted)
	}
}

// TestForcedTokensAreDrafts: what a constraint forces is drafted at once, and in no later step.
func TestForcedTokensAreDrafts(t *testing.T) {
	const after = 60
	forced := []int32{vocabulary + 1, vocabulary + 2, vocabulary + 3, vocabulary + 4} // which stand nowhere, and are wrong
	w := newWorld(t, 200, draftsConfig(3))
	w.forces = func(_ []int32, at int) (f engine.ForcedTokens) {
		if at == after {
			f.Tokens = forced
		}
		return f
	}
	w.submit(scheduler.Request{ID: 1, Tokens: []int32{1, 2, 3, 4}, MaxTokens: 150})
	drafted := 0
	for w.inFlight != nil {
		work := w.inFlight.Batch.Sequences[0]
		drafts := work.Tokens[len(work.Tokens)-work.Sample.Drafts:]
		switch at := len(w.lives[1].output); {
		case at == after && slices.Equal(drafts, forced[:3]):
			drafted++
		case at == after || slices.Contains(drafts, forced[0]):
			t.Errorf("drafts %v after %d tokens", drafts, at)
		}
		w.finishStep(10 * time.Millisecond)
	}
	if w.finishAll(); drafted != 1 {
		t.Errorf("what is forced was drafted in %d steps", drafted)
	}
}

// TestTheLastForcedTokenIsOfAnotherKind: where the last one is always wrong, and the others right, soon it is not
// drafted any more, and they are.
func TestTheLastForcedTokenIsOfAnotherKind(t *testing.T) {
	w := newWorld(t, 200, draftsConfig(3))
	w.forces = twoOfSix
	w.submit(scheduler.Request{ID: 1, Tokens: []int32{1, 2, 3, 4}, MaxTokens: 380})
	for w.inFlight != nil && len(w.lives[1].output) < 250 {
		w.finishStep(time.Duration(10+len(w.inFlight.Batch.Sequences[0].Tokens)) * time.Millisecond)
	}
	first, forced := w.accepted, 0
	for w.inFlight != nil {
		if l, next := w.lives[1], w.expected(w.lives[1]); len(l.output)%6 == 0 && len(l.output)+2 < len(next) { // and open
			forced++
			if work := w.inFlight.Batch.Sequences[0]; work.Sample.Drafts != 1 {
				t.Errorf("%d drafts after %d tokens", work.Sample.Drafts, len(l.output))
			}
		}
		w.finishStep(time.Duration(10+len(w.inFlight.Batch.Sequences[0].Tokens)) * time.Millisecond)
	}
	w.finishAll()
	if forced < 10 || w.accepted-first < forced {
		t.Errorf("%d steps after which text was forced, %d drafts right", forced, w.accepted-first)
	}
}

// TestCostlyDraftsAreGivenUp: where each token of a step costs as much as the first, drafts
// that are mostly wrong lose, and soon there are hardly any.
func TestCostlyDraftsAreGivenUp(t *testing.T) { bothWays(t, testCostlyDrafts) }

func testCostlyDrafts(t *testing.T, config func(int) scheduler.Config) {
	costly := func(tokens int) time.Duration { return time.Duration(tokens) * 10 * time.Millisecond }
	w := runDrafted(t, config(3), 4, 0, costly)
	t.Logf("%d drafts, %d right, %d steps", w.drafts, w.accepted, w.steps)
	most := 4 * 100 / 8 // of the tokens
	if w.config.EngineDrafts {
		most *= 2 // at first, when nobody knows what they cost, each could have as many as it may
	}
	if w.drafts > most {
		t.Errorf("%d drafts, want %d at most", w.drafts, most)
	}
}

// TestCostlyEngineDraftsAreGivenUp: where to verify costs nothing, but the engine takes longer for a draft than
// for a step, soon there are hardly any.
func TestCostlyEngineDraftsAreGivenUp(t *testing.T) {
	free := func(int) time.Duration { return 10 * time.Millisecond }
	for drafting, few := range map[time.Duration]bool{time.Millisecond: false, 20 * time.Millisecond: true} {
		w := runDrafted(t, engineDraftsConfig(3), 2, drafting, free)
		t.Logf("%v a draft: %d drafts, %d right, %d steps", drafting, w.drafts, w.accepted, w.steps)
		if tokens := 2 * 100; w.drafts < tokens/8 != few {
			t.Errorf("%v a draft: %d drafts beside %d tokens", drafting, w.drafts, tokens)
		}
	}
}

// TestADisturbedFirstDraft: what the first draft took does not end drafting for good.
func TestADisturbedFirstDraft(t *testing.T) {
	w := newWorld(t, 200, engineDraftsConfig(3))
	w.drafting, w.eager = time.Second, true
	w.submit(scheduler.Request{ID: 1, Tokens: []int32{1, 2, 3, 1, 2}, MaxTokens: 350})
	for w.inFlight != nil {
		w.finishStep(10 * time.Millisecond)
		if w.drafts > 0 {
			w.drafting = time.Millisecond
		}
	}
	if w.drafts < 20 {
		t.Errorf("%d drafts in %d steps", w.drafts, w.steps)
	}
}

// TestTheEngineDraftsTooMuch: a sequence fails if the engine made more drafts for it than it may, or
// says that more of them were right than there were.
func TestTheEngineDraftsTooMuch(t *testing.T) {
	for _, c := range []struct {
		made     []int32
		accepted int32
		good     bool
	}{{nil, 0, true}, {[]int32{1}, 1, true}, {[]int32{1}, 2, false}, {[]int32{1}, -1, false}, {[]int32{1, 1, 1, 1}, 1, false}} {
		s := newWorld(t, 50, engineDraftsConfig(3)).scheduler
		now := time.Unix(1, 0)
		actions := s.Handle(now, scheduler.Submit{Request: scheduler.Request{ID: 1, Tokens: []int32{1, 2}, MaxTokens: 20}})
		asked := 0
		for asked == 0 {
			run, is := actions[len(actions)-1].(*scheduler.RunStep)
			if !is {
				t.Fatal("it was never asked")
			}
			done := scheduler.StepDone{Tokens: []int32{1}, Compute: time.Millisecond}
			if asked = run.Batch.Sequences[0].Sample.DraftRequest.Most; asked > 0 {
				done.Drafts, done.Accepted = [][]int32{c.made}, []int32{c.accepted}
			}
			actions = s.Handle(now, done)
		}
		failed := slices.ContainsFunc(actions, func(a scheduler.Action) bool {
			end, is := a.(scheduler.Finished)
			return is && end.Reason == scheduler.Failed && end.Err != nil
		})
		if failed == c.good {
			t.Errorf("%d drafts, %d right: failed %v", len(c.made), c.accepted, failed)
		}
	}
}

// TestDraftsBehindALaterDraw: a draft in whose place the draw was put off was neither right nor wrong.
func TestDraftsBehindALaterDraw(t *testing.T) {
	s := newWorld(t, 50, engineDraftsConfig(3)).scheduler
	now := time.Unix(1, 0)
	actions := s.Handle(now, scheduler.Submit{Request: scheduler.Request{ID: 1, Tokens: []int32{1, 2}, MaxTokens: 20}})
	asked := false
	var end *scheduler.Finished
	for end == nil {
		var run *scheduler.RunStep
		for _, a := range actions {
			switch a := a.(type) {
			case *scheduler.RunStep:
				run = a
			case scheduler.Finished:
				end = &a
			}
		}
		if run == nil {
			break
		}
		done := scheduler.StepDone{Tokens: []int32{1}, Compute: time.Millisecond}
		if !asked && run.Batch.Sequences[0].Sample.DraftRequest.Most > 0 {
			asked = true
			done.Tokens, done.Drafts, done.Accepted = []int32{sampler.Later}, [][]int32{{1}}, []int32{0}
		}
		actions = s.Handle(now, done)
	}
	if !asked || end == nil || end.Drafts != 0 {
		t.Errorf("asked %v, at the end %+v, want no draft", asked, end)
	}
}

// TestDraftsEndWithTheRequest: of drafts that were right behind the token that ends a request,
// by its stop token or its length, nothing is told or kept.
func TestDraftsEndWithTheRequest(t *testing.T) { bothWays(t, testDraftsEnd) }

func testDraftsEnd(t *testing.T, config func(int) scheduler.Config) {
	for maxTokens := 1; maxTokens < 30; maxTokens++ {
		for stop := range int32(vocabulary) {
			w := newWorld(t, 200, config(8))
			w.submit(scheduler.Request{ID: 1, Tokens: []int32{1, 2, 1, 2, 1, 2}, MaxTokens: maxTokens, Stop: []int32{stop}})
			w.finishAll()
			l := w.order[0]
			if !slices.Equal(l.output, w.expected(l)) {
				t.Errorf("%v, want %v", l.output, w.expected(l))
			}
			// All blocks whose tokens' KV a run without drafts would have.
			if got, want := len(w.cache), (len(l.tokens())-1)/4; got != want {
				t.Errorf("%d blocks are cached after %d tokens, want %d", got, len(l.tokens()), want)
			}
		}
	}
}

// TestDraftsTakeNobodysBlocks: a sequence that has a block for drafts alone gives it back
// before another is preempted.
func TestDraftsTakeNobodysBlocks(t *testing.T) { bothWays(t, testDraftsTakeNobodysBlocks) }

func testDraftsTakeNobodysBlocks(t *testing.T, of func(int) scheduler.Config) {
	for seed := range uint64(200) {
		run := func(drafts int) *world {
			config := of(drafts)
			config.OutputShare = 0.01
			w := newWorld(t, 13, config)
			for i := range 3 {
				w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: []int32{1, 2, 1, 2, int32(i), 1, 2}, MaxTokens: 10, Sampling: sampler.Params{Seed: seed}})
			}
			w.finishAll()
			return w
		}
		if with, without := run(3), run(0); with.preemptions > without.preemptions {
			t.Fatalf("seed %d: %d preemptions, without drafts %d", seed, with.preemptions, without.preemptions)
		}
	}
}

// TestAnEngineThatDoesNotVerify: a sequence with drafts fails if the engine does not say how
// many were right: what it drew is not known then.
func TestAnEngineThatDoesNotVerify(t *testing.T) {
	s := newWorld(t, 50, draftsConfig(3)).scheduler
	now := time.Unix(1, 0)
	actions := s.Handle(now, scheduler.Submit{Request: scheduler.Request{ID: 1, Tokens: []int32{1, 2, 1, 2, 1, 2}, MaxTokens: 20}})
	for range 20 {
		run, is := actions[len(actions)-1].(*scheduler.RunStep)
		if !is {
			t.Fatal("no step")
		}
		drafts := run.Batch.Sequences[0].Sample.Drafts
		actions = s.Handle(now, scheduler.StepDone{Tokens: []int32{1}, Compute: time.Millisecond})
		if drafts == 0 {
			continue
		}
		for _, action := range actions {
			if end, is := action.(scheduler.Finished); is && end.Reason == scheduler.Failed && end.Err != nil {
				return
			}
		}
		t.Fatalf("%d drafts, and then %v", drafts, actions)
	}
	t.Fatal("no drafts")
}

// TestADraftMayEndTheOutput: behind the token that ends an output its constraint allows nothing.
// Where that token was a draft the sequence has ended well, and its last token says what it
// drafted as the end does.
func TestADraftMayEndTheOutput(t *testing.T) {
	const stop = 9
	var prompt []int32
	for token := int32(20); token < 40; token++ {
		prompt = append(prompt, token, stop)
	}
	s := newWorld(t, 50, draftsConfig(3)).scheduler
	now := time.Unix(1, 0)
	actions := s.Handle(now, scheduler.Submit{Request: scheduler.Request{ID: 1, Tokens: prompt, MaxTokens: 40, Stop: []int32{stop}}})
	for token := int32(20); token < 40; token++ {
		run, is := actions[len(actions)-1].(*scheduler.RunStep)
		if !is {
			t.Fatal("no step")
		}
		if work := run.Batch.Sequences[0]; work.Sample == nil || work.Sample.Drafts == 0 || work.Tokens[1] != stop {
			actions = s.Handle(now, scheduler.StepDone{Tokens: []int32{token}, Accepted: []int32{0}, Compute: time.Millisecond})
			continue
		}
		var last scheduler.Sampled
		for _, action := range s.Handle(now, scheduler.StepDone{Tokens: []int32{sampler.NoneAllowed}, Accepted: []int32{1}, Compute: time.Millisecond}) {
			switch a := action.(type) {
			case *scheduler.Sampled:
				last = *a
			case scheduler.Finished:
				if a.Reason != scheduler.Stopped || a.Err != nil || last.Token != stop {
					t.Errorf("after token %d it ended with %+v", last.Token, a)
				}
				if a.Drafts == 0 || a.Drafts != last.Drafts || a.AcceptedDrafts != last.AcceptedDrafts {
					t.Errorf("%d drafts, %d right; its last token said %d and %d", a.Drafts, a.AcceptedDrafts, last.Drafts, last.AcceptedDrafts)
				}
				return
			}
		}
		t.Fatal("it did not end")
	}
	t.Fatal("no drafts")
}
