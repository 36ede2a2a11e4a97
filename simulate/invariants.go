package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Violation is an invariant that did not hold.
type Violation struct {
	// At is when it was seen, since the start of the load.
	At time.Duration
	// Invariant is its name, Detail what was seen.
	Invariant, Detail string
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s, %v into the load: %s", v.Invariant, v.At, v.Detail)
}

const (
	// spin is how many events at one moment are taken for a loop without end.
	spin = 100000
	// overdue is how long after its deadline a request may end: workers' and routers' timers
	// are exact on virtual time.
	overdue = time.Second
	// rest is how long a cluster goes on after the last request before all has to be free:
	// longer than any lease, keepalive and silence.
	rest = 3 * time.Minute
)

// watch checks the invariants of a cluster; a nil watch checks nothing. It keeps the first
// violation.
type watch struct {
	cluster  *Cluster
	start    time.Time
	writable map[*process]map[uint64][]kvcache.BlockID // by transfer
	open     map[*request]bool
	missed   map[*process]bool // signals of it were lost
	spinning int
	moment   time.Time
	found    *Violation
}

func newWatch(c *Cluster) *watch {
	return &watch{
		cluster: c, writable: make(map[*process]map[uint64][]kvcache.BlockID), open: make(map[*request]bool), missed: make(map[*process]bool),
	}
}

func (w *watch) violated(invariant, format string, args ...any) {
	if w.found == nil {
		w.found = &Violation{At: w.cluster.now.Sub(w.start), Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
	}
}

// err is the first violation.
func (w *watch) err() error {
	if w == nil || w.found == nil {
		return nil
	}
	return w.found
}

// happened looks at the clock after each event.
func (w *watch) happened() {
	if w == nil {
		return
	}
	if w.spinning++; !w.cluster.now.Equal(w.moment) {
		w.moment, w.spinning = w.cluster.now, 0
	}
	if w.spinning == spin {
		w.violated("time passes", "%d events at one moment", spin)
	}
}

// reserved: a transfer may write into blocks.
func (w *watch) reserved(p *process, transfer uint64, blocks []kvcache.BlockID) {
	if w == nil {
		return
	}
	if w.writable[p] == nil {
		w.writable[p] = make(map[uint64][]kvcache.BlockID)
	}
	for other, held := range w.writable[p] {
		for _, block := range blocks {
			if slices.Contains(held, block) {
				w.violated("a block has one writer", "%s: block %d is given to transfer %x while %x may write it", p.ref.ID, block, transfer, other)
			}
		}
	}
	w.writable[p][transfer] = slices.Clone(blocks)
}

// closed: it may not any more.
func (w *watch) closed(p *process, transfer uint64) {
	if w != nil {
		delete(w.writable[p], transfer)
	}
}

// wrote: a chunk of a transfer was written into blocks.
func (w *watch) wrote(p *process, transfer uint64, blocks []kvcache.BlockID) {
	if w == nil {
		return
	}
	for _, block := range blocks {
		if !slices.Contains(w.writable[p][transfer], block) {
			w.violated("transfers write only what is reserved for them", "%s: transfer %x wrote block %d", p.ref.ID, transfer, block)
		}
	}
}

// stepping: a step reads and writes the blocks of its sequences.
func (w *watch) stepping(p *process, run *scheduler.RunStep) {
	if w == nil {
		return
	}
	writer := make(map[kvcache.BlockID]int)
	size := p.layout.BlockTokens
	for i := range run.Batch.Sequences {
		s := &run.Batch.Sequences[i]
		end := s.Start + len(s.Tokens)
		if need := (end + size - 1) / size; need > len(s.Blocks) {
			w.violated("a step has its blocks", "%s: %d tokens in %d blocks of %d", p.ref.ID, end, len(s.Blocks), size)
			return
		}
		for n := s.Start / size; n*size < end; n++ {
			writer[s.Blocks[n]]++
		}
	}
	for i := range run.Batch.Sequences {
		s := &run.Batch.Sequences[i]
		for n := 0; n*size < s.Start+len(s.Tokens); n++ {
			block := s.Blocks[n]
			for transfer, held := range w.writable[p] {
				if slices.Contains(held, block) {
					w.violated("a step uses no block that a transfer may write", "%s: block %d of transfer %x", p.ref.ID, block, transfer)
				}
			}
			if writes := (n+1)*size > s.Start; !writes && writer[block] > 0 || writes && writer[block] > 1 {
				w.violated("a block has one writer", "%s: block %d is written by one sequence of a step and used by another", p.ref.ID, block)
			}
		}
	}
}

// handled: the core of a worker took in an event.
func (w *watch) handled(p *process) {
	if w == nil {
		return
	}
	s := p.core.PoolStats()
	if s.Misuses > 0 || s.Free+s.Cached+s.Held+s.Quarantined != s.Total || s.Reserved > s.Held {
		w.violated("every block is in one place", "%s: %+v", p.ref.ID, s)
	}
	if most := 2*max(p.member.MaxWaiting, 1) + p.member.MaxSequences + s.Total; p.core.Remaining() > most {
		w.violated("tables are bounded", "%s knows %d sequences, at most %d", p.ref.ID, p.core.Remaining(), most)
	}
	r := p.receiver.Stats()
	if r.Reserved+r.Open+r.Ending > s.Total {
		w.violated("tables are bounded", "%s knows %d transfers, more than its %d blocks", p.ref.ID, r.Reserved+r.Open+r.Ending, s.Total)
	}
}

// routed: a router took in an event.
func (w *watch) routed(r *router) {
	if w == nil {
		return
	}
	limit := w.cluster.config.Routing.QueueLimit
	if r.core.Waiting() <= limit {
		return
	}
	again := 0 // requests that were admitted before are not turned away
	for _, q := range r.asking {
		if q.asked > 0 {
			again++
		}
	}
	if r.core.Waiting()-again > limit {
		w.violated("queues are bounded", "%s: %d requests wait for their first attempt, at most %d", r.host.name, r.core.Waiting()-again, limit)
	}
}

// credited looks at the credit of a sender after it sent a chunk.
func (w *watch) credited(s *session) {
	if w != nil && s.core.Credit(0) < 0 {
		w.violated("senders keep to their credit", "%s to %s: %d bytes", s.from.ref.ID, s.to.ref.ID, s.core.Credit(0))
	}
}

func (w *watch) began(q *request) {
	if w != nil {
		w.open[q] = true
	}
}

// delivered: the client of a request got a token.
func (w *watch) delivered(q *request) {
	if w == nil {
		return
	}
	if q.ended {
		w.violated("a request ends once", "%s gets a token after its end", q.key)
	} else if q.answered >= q.from.MaxTokens {
		w.violated("answers have the length asked for", "%s gets more than %d tokens", q.key, q.from.MaxTokens)
	}
}

// finished: the client of a request got its end.
func (w *watch) finished(q *request, err error) {
	if w == nil {
		return
	}
	if q.ended {
		w.violated("a request ends once", "%s ends again: %v", q.key, err)
		return
	}
	if err == nil && q.answered != q.from.MaxTokens {
		w.violated("answers have the length asked for", "%s ends with %d of %d tokens", q.key, q.answered, q.from.MaxTokens)
	}
	delete(w.open, q)
}

// sampled looks now and then at the requests that run.
func (w *watch) sampled() {
	if w == nil {
		return
	}
	for q := range w.open {
		if w.cluster.now.After(q.deadline.Add(overdue)) {
			w.violated("deadlines are kept", "%s was due at %v", q.key, q.deadline.Sub(w.start))
		}
	}
}

// rested lets the cluster come to rest after the load; then nothing may be left of it.
func (c *Cluster) rested() {
	w := c.watch
	if w == nil {
		return
	}
	for until := c.at + int64(rest); w.found == nil && c.step(until); {
		w.happened()
	}
	for q := range w.open {
		w.violated("every request ends", "%s has not, after %d tokens", q.key, q.answered)
	}
	for _, r := range c.routers {
		if r.core.Running()+r.core.Waiting()+len(r.asking) > 0 {
			w.violated("nothing is left at rest", "%s: %d requests run, %d wait, %d ask", r.host.name, r.core.Running(), r.core.Waiting(), len(r.asking))
		}
	}
	for _, m := range c.config.Workers {
		if m.process != nil {
			w.restedWorker(m.process)
		}
	}
}

// pool counts the blocks of a process.
func (p *process) pool() kvcache.Stats {
	if p.store != nil {
		return p.store.blocks.Stats().Pool
	}
	return p.core.PoolStats()
}

func (w *watch) restedWorker(p *process) {
	if n := p.remaining(); n > 0 {
		w.violated("nothing is left at rest", "%s has %d sequences or transfers", p.ref.ID, n)
	}
	if s := p.pool(); s.Held+s.Quarantined > 0 {
		w.violated("nothing is left at rest", "%s: %+v", p.ref.ID, s)
	}
	if s := p.receiver.Stats(); s.Reserved+s.Open+s.Ending > 0 {
		w.violated("nothing is left at rest", "%s: %+v", p.ref.ID, s)
	}
	if n := len(p.unary); n > 0 {
		w.violated("nothing is left at rest", "%s has not answered %d", p.ref.ID, n)
	}
	if n := len(p.owners) + len(w.writable[p]); n > 0 {
		w.violated("nothing is left at rest", "%s has %d reservations", p.ref.ID, n)
	}
	for _, s := range p.sessions {
		if s.core != nil && s.core.Transfers() > 0 || len(s.transfers)+len(s.waiting) > 0 {
			w.violated("nothing is left at rest", "%s has transfers to %s", p.ref.ID, s.to.ref.ID)
		}
	}
	if p.leaving.State() == membership.Stopped || w.missed[p] {
		return
	}
	held := p.snapshot()
	slices.SortFunc(held, cmp.Compare[kvcache.Hash])
	for _, r := range w.cluster.routers {
		known, connected := false, false
		for _, v := range r.core.Workers(w.cluster.now) {
			if v.GetRecord().GetId() == p.ref.ID && v.GetRecord().GetEpoch() == p.ref.Epoch {
				known, connected = true, v.GetConnected()
				if v.GetInFlight() > 0 {
					w.violated("nothing is left at rest", "%s counts %d requests at %s", r.host.name, v.GetInFlight(), p.ref.ID)
				}
			}
		}
		if !known || !connected {
			w.violated("routers find every worker", "%s: known %v, connected %v to %s", r.host.name, known, connected, p.ref.ID)
			continue
		}
		index, inSync := r.core.Prefixes(p.ref.ID)
		slices.SortFunc(index, cmp.Compare[kvcache.Hash])
		if !inSync || !slices.Equal(index, held) {
			w.violated("routers know prefix caches", "%s: %d blocks at %s, which has %d; in sync %v", r.host.name, len(index), p.ref.ID, len(held), inSync)
		}
	}
}
