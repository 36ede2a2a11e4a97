package joining

import "time"

// ReasonWorkerSilent is the reason of a try in which a worker said nothing for
// too long, although its connection works: its process is stopped or its engine
// hangs.
const ReasonWorkerSilent = "WORKER_SILENT"

// Silence is how long a worker may say nothing, by what it is at. What it says
// next is what ends the wait, whatever else happens. Every field has to be set.
type Silence struct {
	// Queue: while the sequence waits for its turn or for room on the worker, also if
	// it ran before and had to give way.
	Queue time.Duration
	// Prompt: while the prompt is computed or its KV is sent, or a sequence that gave
	// way is computed again.
	Prompt time.Duration
	// Tokens: between tokens, and from the last one to the end.
	Tokens time.Duration
}

// silence is which worker has to say something next, and by when; a zero time if
// none has to. Where both have to, it is the one whose time ends first.
func (j *Join) silence() (Side, time.Time) {
	t := &j.try
	if t.ended != nil || t.early != nil {
		return 0, time.Time{} // the rest is bounded by waitUntil
	}
	decode := j.decodeSilence()
	prefill := j.prefillSilence()
	if !prefill.IsZero() && (decode.IsZero() || prefill.Before(decode)) {
		return Prefill, prefill
	}
	return Decode, decode
}

func (j *Join) decodeSilence() time.Time {
	t, limit := &j.try, j.p.Silence
	switch {
	case t.paused:
		return t.decodeAt.Add(limit.Queue)
	case t.catchesUp:
		return t.decodeAt.Add(limit.Prompt)
	case t.admitted && (t.disaggregated() || t.first):
		return t.decodeAt.Add(limit.Tokens)
	case t.admitted:
		return t.decodeAt.Add(limit.Prompt)
	case !t.disaggregated() || !t.reserved:
		return t.decodeAt.Add(limit.Queue)
	case t.sent:
		return t.prefillAt.Add(limit.Queue)
	}
	return time.Time{} // prefill's turn
}

func (j *Join) prefillSilence() time.Time {
	t, limit := &j.try, j.p.Silence
	switch {
	case !t.disaggregated() || !t.reserved, t.sent, t.first && t.admitted:
		return time.Time{} // decode's turn
	case !t.started:
		return t.prefillAt.Add(limit.Queue)
	}
	return t.prefillAt.Add(limit.Prompt)
}
