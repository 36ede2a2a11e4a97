package routing

// lengths is how requests of a level fared by how long their prompts take, as far as they have an objective
// of the time to the first token. Where more comes than can be served, short prompts still fit into what is
// left of the time when long ones no longer do, and would take all of it. So once too few of the longest
// quarter are let in, others are only if a long one would be, too: the trunk reservation of telephone
// networks, which has calls of every size refused equally often. It does not hold for a tenant that has few
// requests: others' long ones are not to keep it out.
type lengths struct {
	quarterMs float64 // about a quarter of the prompts take longer
	longMs    float64 // about a twentieth of them do
	// quarter are those that take longer than quarterMs.
	all, quarter admissions
}

// admissions are requests that came, and that were let in. The older they are, the less they count.
type admissions struct{ came, admitted float64 }

const (
	// admissionsKept is of how many requests admissions tell.
	admissionsKept = 256
	// leastOfQuarter is how many of the longest quarter have come at least before anything is done for them.
	leastOfQuarter = 8
	// quarterShare is how many of the longest quarter are let in at least, of the mean, before something is
	// done: more than the half that they are to have, since little is known of few requests.
	quarterShare = 0.75
)

// takenMs is how long a prompt of so many milliseconds is taken to be, where one of up to roomMs may be in time.
func (l *lengths) takenMs(ms, roomMs float64) float64 {
	if l.quarter.came < leastOfQuarter || l.quarter.share() >= quarterShare*l.all.share() || l.longMs >= roomMs {
		return ms
	}
	return max(ms, l.longMs)
}

// judged takes in whether a request was let in.
func (l *lengths) judged(ms float64, admitted bool) {
	if l.longMs == 0 {
		l.quarterMs, l.longMs = ms, ms
	}
	// The factors of each rest where a quarter and where a twentieth is above. They are written out, since
	// the last digits of a power depend on the processor, and recordings are decided again elsewhere.
	follow(&l.quarterMs, ms, 1.038, 0.98764)
	follow(&l.longMs, ms, 1.0486, 0.997505)
	l.all.fade()
	l.quarter.fade()
	l.all.add(admitted)
	if ms > l.quarterMs {
		l.quarter.add(admitted)
	}
}

func (a *admissions) share() float64 { return a.admitted / a.came }

func (a *admissions) add(admitted bool) {
	a.came++
	if admitted {
		a.admitted++
	}
}

func (a *admissions) fade() {
	a.came *= 1 - 1./admissionsKept
	a.admitted *= 1 - 1./admissionsKept
}

// follow moves an estimate towards what was seen.
func follow(estimate *float64, seen, up, down float64) {
	if seen > *estimate {
		*estimate *= up
	} else {
		*estimate *= down
	}
}
