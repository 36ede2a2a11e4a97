package routing

import (
	"hash/fnv"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// The prefix index follows the KV events of workers, which come over NATS. Where one is missing
// the worker is asked for its whole prefix cache, over gRPC. The next event shows that, or else a
// load report, which says what the last one was. Until the cache has come, and where nothing is
// heard of a worker, what is known is believed less and less.

const (
	// listRetry is how long after a ListBlocks that failed or did not suffice the next one is
	// sent; each that fails doubles it, up to listRetryMost.
	listRetry     = time.Second
	listRetryMost = time.Minute
	// listsMost is how many workers are asked at a time.
	listsMost = 8
	// listSpread is over how long the routers spread that miss the same event, by chance.
	listSpread = 100 * time.Millisecond
	// checkEvery is how often, about, a worker is asked of which nothing is heard.
	checkEvery = 30 * time.Second
	// doubtHalf is after how long half of what is not certain any more is believed.
	doubtHalf = 30 * time.Second
)

// partBlocks is how many blocks of a snapshot are taken in at a time: decisions that are due
// in between wait for a millisecond.
const partBlocks = 1024

// Listed is a worker's answer to ListBlocks as events, to be handled in order.
func Listed(worker Ref, response *workerv1.ListBlocksResponse) (parts []BlocksListed) {
	// Parents come first. The last part becomes the most recently used.
	hashes, came := response.GetBlockHashes(), 0
	for len(hashes) > partBlocks {
		rest := len(hashes) - partBlocks
		parts = append(parts, BlocksListed{Worker: worker, Response: part(response, hashes[rest:]), Came: came, More: true})
		hashes, came = hashes[:rest], came+partBlocks
	}
	return append(parts, BlocksListed{Worker: worker, Response: part(response, hashes), Came: came})
}

func part(of *workerv1.ListBlocksResponse, hashes []uint64) *workerv1.ListBlocksResponse {
	return &workerv1.ListBlocksResponse{Epoch: of.GetEpoch(), Sequence: of.GetSequence(), BlockHashes: hashes}
}

// reportedBlocks is how many of the blocks that the index has for a worker are believed to be there.
func (rt *Router) reportedBlocks(now time.Time, w *worker, blocks int) int {
	doubt := rt.unsure(now, w)
	if doubt <= 0 || blocks == 0 {
		return blocks
	}
	return int(float64(blocks) * math.Exp2(-float64(doubt)/float64(doubtHalf)))
}

// unsure is for how long it has not been certain what a worker holds; not above 0: it is.
func (rt *Router) unsure(now time.Time, w *worker) time.Duration {
	doubt := now.Sub(w.heardAt) - rt.config.LoadStale
	if !w.doubtedAt.IsZero() {
		doubt = max(doubt, now.Sub(w.doubtedAt))
	}
	return doubt
}

// UnsureWorkers is of how many connected workers it is not certain what they hold.
func (rt *Router) UnsureWorkers(now time.Time) (n int) {
	for _, w := range rt.order {
		if w.connected && (rt.unsure(now, w) > 0 || !rt.index.InSync(w.ref.ID)) {
			n++
		}
	}
	return n
}

// blocks takes in a KV event.
func (rt *Router) blocks(now time.Time, event *controlv1.KvEvent) {
	origin := event.GetOrigin()
	w := rt.worker(Ref{origin.GetId(), origin.GetEpoch()})
	if w == nil {
		return
	}
	w.heardAt = now
	stored := appendHashes(rt.hashes[:0], event.GetStored())
	rt.hashes = appendHashes(stored, event.GetRemoved())
	if rt.index.Apply(w.ref.ID, w.ref.Epoch, origin.GetSequence(), rt.hashes[:len(stored)], rt.hashes[len(stored):]) {
		w.applied = max(w.applied, origin.GetSequence())
		rt.confirm(now, w)
		return
	}
	rt.lost(now, w)
}

// announced takes in the number of a worker's last KV event, by a load report. It may come before
// the event, but not by as much as a request may be late in load reports.
func (rt *Router) announced(now time.Time, w *worker, sequence uint64) {
	lacks := func(sequence uint64) bool {
		return sequence > w.applied && rt.index.Lacks(w.ref.ID, w.ref.Epoch, sequence)
	}
	switch {
	case !lacks(sequence):
		w.announced = 0
	case w.announced == 0 || !lacks(w.announced):
		w.announced, w.announcedAt = sequence, now
	case now.Sub(w.announcedAt) >= rt.config.ReportLag:
		w.announced = 0
		rt.lost(now, w)
	}
}

// lost takes in that a KV event is missing.
func (rt *Router) lost(now time.Time, w *worker) {
	w.doubt(now)
	if w.gap {
		return
	}
	w.unlisted, w.gap = true, true
	rt.workersDue.known = false
	if at := now.Add(time.Duration(rt.random.IntN(int(listSpread)))); at.After(w.listNext) {
		w.listNext = at
	}
	// Forged events make gaps too, so a gap is followed by a pause.
	if w.gapNext.After(w.listNext) {
		w.listNext = w.gapNext
	}
}

// doubt notes that it is not certain any more what a worker holds.
func (w *worker) doubt(now time.Time) {
	if w.doubtedAt.IsZero() {
		w.doubtedAt = now
	}
}

// list asks for a worker's prefix cache if it is wanted.
func (rt *Router) list(now time.Time, w *worker) {
	if rt.wantsList(w) && !now.Before(w.listNext) {
		rt.setListing(w, true)
		if w.gap {
			w.gap, w.gapNext = false, now.Add(listRetry)
		}
		rt.out = append(rt.out, ListBlocks{w.ref})
	}
}

// wantsList reports whether a worker is to be asked for its prefix cache when it is time.
func (rt *Router) wantsList(w *worker) bool {
	return w.unlisted && w.connected && !w.listing && rt.listings < listsMost
}

// listAll asks all workers whose prefix cache is wanted, a few at a time.
func (rt *Router) listAll(now time.Time) {
	for _, w := range rt.order {
		if !w.checkAt.IsZero() && !now.Before(w.checkAt) {
			rt.checkHeard(now, w)
		}
		rt.list(now, w)
	}
}

// setListing notes whether an answer to ListBlocks is on its way.
func (rt *Router) setListing(w *worker, listing bool) {
	switch {
	case listing == w.listing:
		return
	case listing:
		rt.listings++
	default:
		rt.listings--
	}
	w.listing = listing
	rt.workersDue.known = false
}

// listed takes in the answer to ListBlocks, or a part of it. It says whether the worker turned
// out to be another one.
func (rt *Router) listed(now time.Time, e BlocksListed) (lost bool) {
	w := rt.worker(e.Worker)
	if w == nil {
		return false
	}
	if !e.More {
		rt.setListing(w, false)
	}
	switch {
	case e.Response == nil:
		w.listNext = now.Add(doubling(listRetry, w.listFailures, listRetryMost))
		w.listFailures++
	case e.Response.GetEpoch() != w.ref.Epoch:
		rt.disconnect(now, w)
		return true
	case e.More:
		rt.index.Part(w.ref.ID, w.ref.Epoch, e.Response.GetSequence(), e.Came, appendHashes(nil, e.Response.GetBlockHashes()))
	default:
		rt.snapshot(now, w, e)
	}
	if !e.More {
		rt.listAll(now)
	}
	return false
}

// snapshot takes in a worker's prefix cache.
func (rt *Router) snapshot(now time.Time, w *worker, e BlocksListed) {
	w.listFailures, w.heardAt = 0, now
	w.checkAt = now.Add(checkEvery + w.spread(checkEvery/2))
	w.applied = 0 // the snapshot may be older
	w.unlisted = !rt.index.FinishSnapshot(w.ref.ID, w.ref.Epoch, e.Response.GetSequence(), e.Came, appendHashes(nil, e.Response.GetBlockHashes()))
	if w.unlisted {
		w.doubt(now)
		w.listNext = now.Add(listRetry)
		return
	}
	w.doubtedAt, w.gap = time.Time{}, false
	rt.confirm(now, w)
}

// checkHeard asks for the prefix cache of a worker of which nothing is heard.
func (rt *Router) checkHeard(now time.Time, w *worker) {
	w.checkAt = now.Add(checkEvery)
	if now.Sub(w.heardAt) > rt.config.LoadStale && w.connected {
		w.unlisted = true
	}
}

// spread is a time by which workers differ, below most.
func (w *worker) spread(most time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(w.ref.ID)) // it never fails
	return most * time.Duration(h.Sum32()>>16) >> 16
}

func appendHashes(out []kvcache.Hash, words []uint64) []kvcache.Hash {
	for _, w := range words {
		out = append(out, kvcache.Hash(w))
	}
	return out
}
