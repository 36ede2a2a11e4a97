package quota

import "time"

// windowLength is how long what was used counts.
const windowLength = time.Minute

// slot is how precise that is. What was used in a part of a second counts until all of that
// second is a minute ago.
const slot = time.Second

// window is a sum over the last minute.
type window struct {
	slots  [windowLength/slot + 1]int64
	newest int64 // number of the newest slot, since the zero of the limiter's time
	sum    int64
}

// advance drops what is older than a minute.
func (w *window) advance(now int64) {
	for w.newest < now {
		if now-w.newest >= int64(len(w.slots)) {
			w.slots, w.sum, w.newest = [len(w.slots)]int64{}, 0, now
			return
		}
		w.newest++
		at := w.newest % int64(len(w.slots))
		w.sum -= w.slots[at]
		w.slots[at] = 0
	}
}

// add adds to a slot, unless that is over.
func (w *window) add(at, n int64) {
	if at > w.newest-int64(len(w.slots)) && at <= w.newest {
		w.slots[at%int64(len(w.slots))] += n
		w.sum += n
	}
}

// until is how many slots from now on it takes until the sum is lower by n, or all is over.
func (w *window) until(n int64) int64 {
	for age := int64(len(w.slots)) - 1; age >= 0; age-- {
		at := w.newest - age
		if at < 0 {
			continue
		}
		if n -= w.slots[at%int64(len(w.slots))]; n <= 0 {
			return int64(len(w.slots)) - age
		}
	}
	return int64(len(w.slots))
}
