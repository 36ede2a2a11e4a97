package routing

import (
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// How fast KV passes between two workers is learned from transfers. Prefill workers say how much they
// sent to a decode worker, and for how long there was something to send (KvSent.path_bytes,
// path_busy_ns), so that neither the time of computing nor that of other transfers between the two
// counts. Transfers of either with other workers do, since they share a network: so the most that
// was reached counts, and is forgotten slowly (as the bottleneck bandwidth of BBR, a maximum of
// delivery rates; Cardwell et al., 2016). How long KV waits for that of others is predicted apart,
// from what is still to be sent.

// speed is how fast KV passes: bytes of pages a millisecond.
type speed struct {
	bytesPerMs float64
	at         time.Time // when it was measured last; zero: never
}

const (
	// speedFalls is of how many transfers one that was slower is one.
	speedFalls = 16
	// speedForget is how long what was measured stands.
	speedForget = time.Minute
	// speedLeastBytes is of how many bytes a transfer tells: a smaller one is mostly round trips.
	speedLeastBytes = 64 << 10
	// leastBytesPerMs and mostBytesPerMs bound what a worker may say.
	leastBytesPerMs, mostBytesPerMs = 1, 1e12
	// guessTried is how often a request is sent as if the network took no time while nothing is
	// measured: a guess that is too low would never be corrected.
	guessTried = time.Second
	// sendersMost is from how many senders a decode worker remembers speeds.
	sendersMost = 64
)

func (s *speed) known(now time.Time) bool { return !s.at.IsZero() && now.Sub(s.at) <= speedForget }

// reached takes in how fast a transfer was.
func (s *speed) reached(now time.Time, bytesPerMs float64) {
	if s.known(now) && bytesPerMs < s.bytesPerMs {
		bytesPerMs = s.bytesPerMs + (bytesPerMs-s.bytesPerMs)/speedFalls
	}
	*s = speed{bytesPerMs, now}
}

// ownSpeed is how fast KV passes from or to a worker, whoever is on the other side.
type ownSpeed struct {
	speed
	with    Ref  // whom the last transfer was with
	several bool // there were others before
	// bytes were moved by the last transfers, in so much time in which there was one: together they move
	// more than each does. There was one from that time until speed.at.
	bytes, busyMs float64
	from          time.Time
}

// reachedWith takes in a transfer of so many bytes, with what was reached meanwhile between its workers.
func (s *ownSpeed) reachedWith(now time.Time, bytesPerMs float64, with Ref, bytes float64, busy time.Duration) {
	known := s.known(now)
	s.several = known && (s.several || s.with != with)
	began := now.Add(-busy)
	switch {
	case !known:
		s.bytes, s.busyMs, s.from = 0, 0, began
	case began.After(s.at):
		s.from = began
	default: // what others have had of its time counts once
		busy = now.Sub(s.at) + max(s.from.Sub(began), 0)
		if began.Before(s.from) {
			s.from = began
		}
	}
	s.bytes += bytes - s.bytes/speedFalls
	s.busyMs += milliseconds(busy) - s.busyMs/speedFalls
	if s.busyMs > 0 {
		bytesPerMs = max(bytesPerMs, min(s.bytes/s.busyMs, mostBytesPerMs))
	}
	s.reached(now, bytesPerMs)
	s.with = with
}

// sender is how fast KV comes from a worker.
type sender struct {
	from *worker
	speed
}

// sent takes in that the KV of a request has arrived.
func (rt *Router) sent(now time.Time, e Sent) {
	d := rt.running[e.ID]
	if d == nil || d.prefill == nil {
		return
	}
	d.prefill.arrived(e.ID)
	d.decode.arrived(e.ID)
	ms := milliseconds(e.Busy)
	if e.Bytes < speedLeastBytes || ms <= 0 || rt.worker(d.prefill.ref) != d.prefill || rt.worker(d.decode.ref) != d.decode {
		return
	}
	bytesPerMs := min(max(float64(e.Bytes)/ms, leastBytesPerMs), mostBytesPerMs)
	d.decode.speedFrom(now, d.prefill).reached(now, bytesPerMs)
	rt.speed.reached(now, bytesPerMs)
	own := float64(d.moves) * d.decode.bytesPerToken
	d.prefill.speed.reachedWith(now, bytesPerMs, d.decode.ref, own, e.Busy)
	d.decode.speed.reachedWith(now, bytesPerMs, d.prefill.ref, own, e.Busy)
}

// speedFrom is how fast KV comes from a sender, to be measured. That of the sender that was heard of
// the longest ago is forgotten for it if they are too many.
func (w *worker) speedFrom(now time.Time, from *worker) *speed {
	at := slices.IndexFunc(w.senders, func(s sender) bool { return s.from == from })
	if at < 0 && len(w.senders) < sendersMost {
		at, w.senders = len(w.senders), append(w.senders, sender{})
	}
	if at < 0 {
		at = 0
		for i := range w.senders {
			if w.senders[i].at.Before(w.senders[at].at) {
				at = i
			}
		}
	}
	if s := &w.senders[at]; s.from != from {
		*s = sender{from: from}
	}
	return &w.senders[at].speed
}

// forgetSender forgets a worker that is dropped.
func (rt *Router) forgetSender(w *worker) {
	for _, to := range rt.order {
		to.senders = slices.DeleteFunc(to.senders, func(s sender) bool { return s.from == w })
	}
}

// speedOf is what a worker's transfers move, bytes a millisecond: of those between all where it has
// had none lately, or with one of several others alone, which may be the one that is slow; and without
// any the configured guess.
func (rt *Router) speedOf(now time.Time, w *worker) float64 {
	switch {
	case w.speed.known(now) && (w.speed.several || rt.groups().taking[partner(w.role)] == 1):
		return w.speed.bytesPerMs
	case rt.speed.known(now):
		return rt.speed.bytesPerMs
	}
	return rt.config.TransferBytesPerSecond / 1000
}

// partner is the other role: of those that a worker of a role sends KV to, or gets it from.
func partner(role controlv1.Role) controlv1.Role {
	if role == controlv1.Role_ROLE_DECODE {
		return controlv1.Role_ROLE_PREFILL
	}
	return controlv1.Role_ROLE_DECODE
}

// speedBetween is what a transfer from another worker moves, bytes a millisecond: as measured, or the
// less of what either does with others.
func (w *worker) speedBetween(now time.Time, from *worker, less float64) float64 {
	for i := range w.senders {
		if s := &w.senders[i]; s.from == from && s.known(now) {
			return s.bytesPerMs
		}
	}
	return less
}

// movingMs is how long a worker's network takes, at so many bytes a millisecond, for the KV that is on
// its way from or to it.
func (f *finding) movingMs(bytesPerMs float64) float64 {
	return float64(f.load.moving) * f.worker.bytesPerToken / bytesPerMs
}

// transferMs is how long it takes to send KV of so many tokens to or from a worker.
func (rt *Router) transferMs(now time.Time, w *worker, tokens int) float64 {
	return float64(tokens) * w.bytesPerToken / rt.speedOf(now, w)
}

// predictTransfer predicts how long after the first token the last KV of a prompt arrives, of which so
// many tokens are sent. The first token comes after firstMs, of which the prompt is computed, and its KV
// sent, in prefillMs. The KV of other prompts that use the same networks goes before it. from is nil
// where no prefill worker is chosen yet.
func (rt *Router) predictTransfer(c *cost, now time.Time, from, to *finding, tokens int, firstMs, prefillMs float64) {
	c.bytesPerMs = rt.speedOf(now, to.worker)
	before := to.movingMs(c.bytesPerMs)
	if from != nil {
		speed := rt.speedOf(now, from.worker)
		before = max(before, from.movingMs(speed))
		c.bytesPerMs = to.worker.speedBetween(now, from.worker, min(speed, c.bytesPerMs))
	}
	if !rt.speed.known(now) && now.Sub(rt.guessTriedAt) >= guessTried {
		return
	}
	ms := float64(tokens) * to.worker.bytesPerToken / c.bytesPerMs
	c.transferMs = max(before+ms-firstMs, ms-prefillMs, 0)
}

// predictTransfers predicts when KV from each prefill worker would have arrived at a decode worker, and
// what that costs the second token.
func (rt *Router) predictTransfers(s *search, decode *candidate, prefills *candidates) {
	for i := range prefills.all {
		c := &prefills.all[i]
		rt.predictTransfer(&c.cost, s.now, &c.finding, &decode.finding, decode.uncached, c.firstMs, c.prefillMs)
		with := decode.cost
		c.totalMs += rt.transferFrom(s, &with, c)
		c.misses = c.misses || with.misses
	}
}

// transferFrom has the cost of a decode worker be that with KV from a prefill worker, where it was that
// with KV of a prompt of average length. It returns how much more that costs, milliseconds.
func (rt *Router) transferFrom(s *search, c *cost, prefill *candidate) (moreMs float64) {
	assumedMs, assumedTokenMs := max(c.placeMs, c.transferMs), c.tpotMs
	c.transferMs, c.bytesPerMs = prefill.transferMs, prefill.bytesPerMs
	waitMs := max(c.placeMs, c.transferMs)
	c.tokenTimes = c.onTime.delayed(waitMs, s.request.MaxNew)
	_, tpot := s.entry.objective(c)
	c.misses = tpot > 0 && c.measured && s.request.Attempt == 0 && c.lateToken(c.doubtToken) > tpot
	if waitMs > assumedMs {
		return waitMs - assumedMs
	}
	return (c.tpotMs - assumedTokenMs) * rt.countedTokens(s.request)
}
