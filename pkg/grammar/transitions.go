package grammar

// transitions are where the bytes lead from a state: to another one, or nowhere, as far as
// that is known.
type transitions[S any] struct {
	known byteSet
	few   []transition[S]
	table *[256]*S // instead of few, where there are many
}

type transition[S any] struct {
	b  byte
	to *S
}

// maxFew is from how many transitions on a state has a table.
const maxFew = 8

// get is where a byte leads, nil if nowhere, and whether that is known.
func (t *transitions[S]) get(b byte) (to *S, known bool) {
	if !t.known.has(b) {
		return nil, false
	}
	if t.table != nil {
		return t.table[b], true
	}
	for i := range t.few {
		if t.few[i].b == b {
			return t.few[i].to, true
		}
	}
	return nil, true
}

// set notes where a byte leads, nil if nowhere.
func (t *transitions[S]) set(b byte, to *S) {
	t.known.add(b)
	switch {
	case to == nil:
	case t.table != nil:
		t.table[b] = to
	case len(t.few) < maxFew:
		t.few = append(t.few, transition[S]{b, to})
	default:
		t.table = new([256]*S)
		for _, f := range t.few {
			t.table[f.b] = f.to
		}
		t.few = nil
		t.table[b] = to
	}
}

// leading are the bytes that are known to lead on.
func (t *transitions[S]) leading() (out byteSet) {
	for _, f := range t.few {
		out.add(f.b)
	}
	if t.table != nil {
		for b, to := range t.table {
			if to != nil {
				out.add(byte(b))
			}
		}
	}
	return out
}
