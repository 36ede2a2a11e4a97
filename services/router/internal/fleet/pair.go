package fleet

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// pair looks for prefill workers that can send to decode. If there are none because
// KV does not get there, or disaggregation is forced, other decode workers will do:
// one that no prefill worker can send to is no choice then, however cheap. If none
// does, it is decode that is returned.
func (f *Fleet) pair(l *looking, decodes outlook, decode *option) (*option, outlook) {
	record, forced := l.record, l.request.Mode == inferencev1.Mode_MODE_DISAGGREGATED
	looked := len(record.Candidates)
	none := f.look(l, controlv1.Role_ROLE_PREFILL, decode.worker)
	if none.verdict == found || !forced && none.whyBroken == "" {
		return decode, none
	}
	candidates := record.Candidates
	again := func(to *worker) outlook {
		record.Candidates = record.Candidates[:looked:looked] // each worker once
		return f.look(l, controlv1.Role_ROLE_PREFILL, to)
	}
	// Of each pair only the path is examined, and of each worker the rest once: with
	// all paths broken there are prefill workers times decode workers.
	s := f.senders(l)
	least, better := none.verdict, (*worker)(nil)
	for _, options := range [...][]*option{decodes.options, decodes.others} {
		var reached []*option
		for _, o := range options {
			v := f.reach(l, s, o.worker)
			if v == found {
				reached = append(reached, o)
			} else if v < least {
				least, better = v, o.worker
			}
		}
		if len(reached) > 0 {
			other := f.choose(reached)
			return other, again(other.worker)
		}
	}
	if better != nil {
		none = again(better)
	}
	if none.verdict == severed && decodes.full > 0 && forced {
		none.verdict = wait // it may be another one's turn that KV gets to
	}
	record.Candidates = candidates
	return decode, none
}

// senders is the prefill workers that could take a request, whichever decode worker
// they send to.
type senders struct {
	now, later []*worker // with room, and without at the moment
	small      bool      // there are some that are too small
}

func (f *Fleet) senders(l *looking) senders {
	const role = controlv1.Role_ROLE_PREFILL
	var s senders
	for _, w := range f.order {
		if w.record.GetRole() != role {
			continue
		}
		switch why, later, _ := f.excluded(l.now, l.request, role, w, nil); {
		case why == "":
			s.now = append(s.now, w)
		case later:
			s.later = append(s.later, w)
		case tooSmall(w, l.request, role):
			s.small = true
		}
	}
	return s
}

// reach is the verdict that look would come to about prefill workers for a decode
// worker.
func (f *Fleet) reach(l *looking, s senders, to *worker) verdict {
	out := nobody
	if s.small {
		out = never
	}
	sends := func(w *worker, room verdict) {
		if w.record.GetLayoutDigest() != to.record.GetLayoutDigest() {
			return
		}
		if why, soon := f.severed(l.now, l.request, path{w.ref, to.ref}); why != "" {
			if room = severed; soon {
				room = wait
			}
		}
		out = min(out, room)
	}
	for _, w := range s.now {
		if sends(w, found); out == found {
			return found
		}
	}
	for _, w := range s.later {
		sends(w, wait)
	}
	return out
}
