package scheduler_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// machine makes random things happen to a world.
type machine struct {
	*world
	lastID scheduler.SequenceID
}

func anyRequest(t *rapid.T, blockTokens, context int) scheduler.Request {
	// Prompts are built of few different blocks, so that many share prefixes.
	blocks := rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 4).Draw(t, "blocks")
	var tokens []int32
	for _, b := range blocks {
		for i := range blockTokens {
			tokens = append(tokens, b+int32(i))
		}
	}
	tokens = append(tokens, rapid.SliceOfN(rapid.Int32Range(0, 2), 0, blockTokens).Draw(t, "rest")...)
	if len(tokens) == 0 {
		tokens = []int32{1}
	}
	r := scheduler.Request{
		Kind:      scheduler.Kind(rapid.IntRange(0, 3).Draw(t, "kind")),
		Tokens:    tokens,
		Generated: rapid.SampledFrom([]int{0, 0, 0, len(tokens) / 2}).Draw(t, "generated"),
		Sampling:  sampler.Params{Seed: rapid.Uint64Range(0, 3).Draw(t, "seed")},
		Salt:      rapid.SampledFrom([]string{"", "", "", "salt"}).Draw(t, "salt"),
		Priority:  rapid.Int32Range(-1, 1).Draw(t, "priority"),
	}
	if rapid.Bool().Draw(t, "has a pace") {
		r.EachIn = rapid.SampledFrom([]time.Duration{time.Nanosecond, 5 * time.Millisecond, time.Hour}).Draw(t, "each in")
	}
	if rapid.Bool().Draw(t, "is due") {
		r.FirstIn = rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second}).Draw(t, "first in")
	}
	if rapid.Bool().Draw(t, "logprobs") {
		r.Logprobs, r.TopLogprobs = true, 2
	}
	if r.Kind == scheduler.Full && rapid.IntRange(0, 3).Draw(t, "scored") == 0 {
		r.PromptLogprobs, r.TopPromptLogprobs = true, 1
	}
	if rapid.Bool().Draw(t, "penalty") {
		r.Sampling.PresencePenalty = 1
		r.Sampling.LogitBias = []sampler.TokenBias{{Token: 1, Bias: 2}}
	}
	if r.Kind == scheduler.Restore {
		r.Tokens, r.Generated = tokens[:len(blocks)*blockTokens], 0
		r.Spare = rapid.IntRange(0, 2).Draw(t, "spare")
		if len(blocks) == 0 {
			r.Kind, r.Tokens = scheduler.Full, tokens
		}
	}
	r.MaxTokens = r.Generated + rapid.IntRange(1, 12).Draw(t, "more tokens")
	if rapid.Bool().Draw(t, "has stop") {
		r.Stop = []int32{rapid.Int32Range(0, vocabulary-1).Draw(t, "stop")}
	}
	if rapid.Bool().Draw(t, "has deadline") {
		r.Deadline = time.Unix(2000+rapid.Int64Range(0, 5).Draw(t, "deadline"), 0)
	}
	return r
}

// rarely is true about once in n times. Numbers at either end of a range are
// drawn more often than others, so it asks for one between.
func rarely(t *rapid.T, n int) bool { return rapid.IntRange(0, n).Draw(t, "rarely") == n*2/3 }

func (m *machine) submitAny(t *rapid.T) {
	m.lastID++
	r := anyRequest(t, m.config.BlockTokens, m.config.ContextTokens)
	r.ID = m.lastID
	load, before := m.scheduler.Load(), m.scheduler.PoolStats()
	waiting := load.WaitingSequences
	// One block of a prompt always fits beside all who decode.
	slots := min(m.config.MaxSequences, m.config.MaxBatchTokens-m.config.BlockTokens+1)
	places := slots - load.RunningSequences
	for _, l := range m.order {
		if l.receiving() {
			places--
		}
	}
	arriving, spare := m.restoring()
	l := m.submit(r)
	full := min(r.MaxTokens-r.Generated+len(r.Tokens), m.config.ContextTokens) - 1
	if r.Kind == scheduler.PrefillOnly || r.Kind == scheduler.Restore {
		full = len(r.Tokens)
	}
	size, total := m.config.BlockTokens, m.scheduler.Load().BlocksTotal
	var want scheduler.RefuseReason
	switch {
	case m.draining:
		want = scheduler.Draining
	case len(r.Tokens) >= m.config.ContextTokens || (full+size-1)/size > total:
		want = scheduler.NeverFits
	case r.Kind == scheduler.Restore:
		s := m.scheduler.PoolStats()
		if l.reason == scheduler.NoBlocks && (waiting+s.Held+s.Quarantined > 0 || full/size+r.Spare > s.Total) {
			want = scheduler.NoBlocks
		}
		lacking := (full - l.cached) / size
		if l.reason == 0 && before.Free+before.Cached < lacking+r.Spare+spare {
			t.Fatalf("%d: took blocks that others need, %d of them for other Restores: %+v", r.ID, spare, before)
		}
		if l.reason == 0 && arriving > 0 && (arriving+lacking)*4 > total {
			t.Fatalf("%d: fills %d blocks where transfers fill %d of %d", r.ID, lacking, arriving, total)
		}
	case waiting >= m.config.MaxWaiting+max(places, 0):
		want = scheduler.QueueFull
	}
	if l.reason != want {
		t.Fatalf("%d: refused with %d, want %d", r.ID, l.reason, want)
	}
}

// restoring is how many blocks Restores are filling, and how many all that are not
// released leave to the requests that they are for.
func (m *machine) restoring() (arriving, spare int) {
	for _, l := range m.order {
		if l.request.Kind == scheduler.Restore && l.reserved && !l.released {
			spare += l.request.Spare
			if !l.arrived {
				arriving += len(l.table) - l.cached/m.config.BlockTokens
			}
		}
	}
	return arriving, spare
}

func (m *machine) pick(t *rapid.T, want func(*life) bool) *life {
	var fit []*life
	for _, l := range m.order {
		if !l.refused && !l.released && want(l) {
			fit = append(fit, l)
		}
	}
	if len(fit) == 0 {
		t.Skip("nobody to do it to")
	}
	return rapid.SampledFrom(fit).Draw(t, "sequence")
}

func (m *machine) cancel(t *rapid.T) {
	if !rarely(t, 4) {
		t.Skip("not now")
	}
	l := m.pick(t, func(*life) bool { return true })
	was := l.finished
	m.handle(scheduler.Cancel{ID: l.request.ID})
	if l.finished == nil || (was != nil && l.finished != was) || (was == nil && l.finished.Reason != scheduler.Cancelled) {
		t.Fatalf("%d: cancelled, finished with %+v, before with %+v", l.request.ID, l.finished, was)
	}
}

func (m *machine) transferring(l *life) bool { return l.reserved && !l.arrived && !l.drained }

func (m *machine) arriveAny(t *rapid.T) {
	// Also for those that were cancelled: the commit was on its way.
	l := m.pick(t, m.transferring)
	if l.request.Kind == scheduler.Restore {
		m.arrive(l, 0)
		return
	}
	m.arrive(l, rapid.SampledFrom([]int{1, 1, 1, 2, 4}).Draw(t, "sampled"))
}

func (m *machine) lateWriteAny(t *rapid.T) {
	m.lateWrite(m.pick(t, m.transferring), rapid.Uint64().Draw(t, "garbage"))
}

func (m *machine) transferFails(t *rapid.T) {
	l := m.pick(t, m.transferring)
	if l.finished != nil {
		m.transferDone(l)
		return
	}
	if rapid.Bool().Draw(t, "cancel first") {
		m.handle(scheduler.Cancel{ID: l.request.ID})
		m.lateWrite(l, 5)
	}
	m.transferDone(l)
	if l.finished == nil || !l.released {
		t.Fatalf("%d: its transfer is over, and it is not", l.request.ID)
	}
}

func (m *machine) prefillShipped(t *rapid.T) {
	l := m.pick(t, func(l *life) bool {
		return l.request.Kind == scheduler.PrefillOnly && l.finished != nil && !l.drained
	})
	if r := l.finished.Reason; r != scheduler.Cancelled && r != scheduler.Failed {
		// The transfer reads until the very end.
		want, _ := alone(l.request.Tokens, 0, 0, 0, nil)
		if got := m.pages.read(l.table, len(want)); !sameUnlessSpoilt(got, want) {
			t.Fatalf("%d: the KV changed before it was shipped", l.request.ID)
		}
	}
	m.transferDone(l)
}

func (m *machine) stepDone(t *rapid.T) {
	if m.inFlight == nil {
		t.Skip("no step in flight")
	}
	tokens := 0
	for _, work := range m.inFlight.Batch.Sequences {
		tokens += len(work.Tokens)
	}
	m.finishStep(time.Duration(1+tokens) * time.Millisecond)
}

func (m *machine) stepFails(t *rapid.T) {
	if m.inFlight == nil {
		t.Skip("no step in flight")
	}
	if !rarely(t, 4) {
		t.Skip("not now")
	}
	m.failStep(errors.New("the device is on fire"))
}

func (m *machine) drain(t *rapid.T) {
	if !rarely(t, 100) {
		t.Skip("not now")
	}
	m.draining = true
	m.handle(scheduler.Drain{})
}

func (m *machine) undrain(t *rapid.T) {
	if m.draining && !rarely(t, 4) {
		t.Skip("not now")
	}
	m.draining = false
	m.handle(scheduler.Undrain{})
}

func (m *machine) nonsense(t *rapid.T) {
	m.handle(scheduler.Cancel{ID: 999_999})
	m.handle(scheduler.TransferDone{ID: 999_999})
	m.handle(scheduler.KVArrived{ID: 999_999, Sampled: []int32{1}})
	m.handle(scheduler.SaveDone{ID: 999_999, Saved: true})
	if m.inFlight == nil {
		m.handle(scheduler.StepDone{Tokens: []int32{1}})
	}
}

func (m *machine) wait(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
}

func TestSchedulerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(t, "block tokens")
		config := scheduler.Config{
			BlockTokens:    size,
			ContextTokens:  rapid.OneOf(rapid.IntRange(12, 30), rapid.IntRange(2, 11)).Draw(t, "context"),
			MaxBatchTokens: size + rapid.IntRange(0, 12).Draw(t, "batch beyond a block"),
			MaxSequences:   rapid.SampledFrom([]int{4, 3, 2, 1, 5}).Draw(t, "sequences"),
			ChunkTokens:    size * rapid.IntRange(1, 4).Draw(t, "chunk blocks"),
			MaxWaiting:     rapid.SampledFrom([]int{8, 4, 2, 1}).Draw(t, "waiting"),
			MaxOvertakes:   rapid.IntRange(1, 5).Draw(t, "overtakes"),
			StepBudget:     rapid.SampledFrom([]time.Duration{0, 3 * time.Millisecond, 100 * time.Millisecond}).Draw(t, "step budget"),
			OutputShare:    rapid.SampledFrom([]float64{0.01, 0, 0.3, 0.01}).Draw(t, "output share"),
			MaxDrafts:      rapid.SampledFrom([]int{0, 3, 1, 8}).Draw(t, "drafts"),
			EngineDrafts:   rapid.Bool().Draw(t, "the engine drafts"),
		}
		m := &machine{world: newWorld(t, rapid.SampledFrom([]int{20, 12, 30, 8, 4, 1}).Draw(t, "blocks"), config)}
		m.putsOff = rapid.Bool().Draw(t, "draws are put off")
		if rapid.Bool().Draw(t, "constraints force tokens") {
			m.forces = twoOfSix
		}
		actions := map[string]func(*rapid.T){
			"submit":         m.submitAny,
			"submit2":        m.submitAny,
			"submit3":        m.submitAny,
			"step done":      m.stepDone,
			"step done2":     m.stepDone,
			"step done3":     m.stepDone,
			"step done4":     m.stepDone,
			"step fails":     m.stepFails,
			"cancel":         m.cancel,
			"KV arrives":     m.arriveAny,
			"KV arrives2":    m.arriveAny,
			"late write":     m.lateWriteAny,
			"spoil":          m.spoilAny,
			"scrubbed":       m.scrubAny,
			"transfer fails": m.transferFails,
			"shipped":        m.prefillShipped,
			"restored used":  m.restoredUsed,
			"save limit":     m.limitSaves,
			"save done":      m.saveDoneAny,
			"drain":          m.drain,
			"undrain":        m.undrain,
			"nonsense":       m.nonsense,
			"wait":           m.wait,
		}
		for range 4 { // Repeat alone is too short for sequences to live their lives
			t.Repeat(actions)
		}
		m.finishAll()
	})
}
