package speculation

import "math/bits"

const (
	// longestMatch is how many of the tokens before a place are compared.
	longestMatch = 4
	// mostPlaces is how many places of a token are asked, the last ones first, and mostHops how many are looked at:
	// some are of other tokens.
	mostPlaces, mostHops = 8, 32
	// matchWeight is by how much each further token that is the same makes a place count more, and fade by how
	// much less each earlier place counts.
	matchWeight, fade = 4, 0.8

	// lookupTokens is the most tokens of a text that a Lookup remembers, the last ones: eight bytes each.
	lookupTokens = 1 << 15
	leastTokens  = 1 << 6
)

// Text is a sequence of tokens in two parts, as a scheduler has it.
type Text struct{ Prompt, Generated []int32 }

// Len is the number of tokens.
func (t Text) Len() int { return len(t.Prompt) + len(t.Generated) }

func (t Text) at(i int) int32 {
	if i < len(t.Prompt) {
		return t.Prompt[i]
	}
	return t.Generated[i-len(t.Prompt)]
}

// Lookup drafts what stood behind the same tokens before. It remembers where each of the last tokens of a text stood, in
// tables of bounded size. The zero Lookup knows nothing.
type Lookup struct {
	last   []int32 // by a token's hash: behind the last place of one with it; 0: none
	before []int32 // by place, round and round: the same for the place before
	known  int     // the tokens before this position are in the tables
}

// Extend takes in what the text has become: the same, with more at its end. It reads at most
// so many tokens and says whether it has read all.
func (l *Lookup) Extend(t Text, most int) bool {
	// Of the last token nothing follows yet.
	end := t.Len() - 1
	if end-l.known > most {
		end = l.known + most
	}
	for ; l.known < end; l.known++ {
		if l.known >= len(l.last) && len(l.last) < lookupTokens {
			l.grow(t)
		}
		l.add(t.at(l.known), l.known)
	}
	return l.known >= t.Len()-1
}

// grow makes the tables large enough for the text. What was in smaller ones is taken in again.
func (l *Lookup) grow(t Text) {
	size := min(max(leastTokens, 1<<bits.Len(uint(t.Len()))), lookupTokens)
	l.last, l.before = make([]int32, size), make([]int32, size)
	for i := range l.known {
		l.add(t.at(i), i)
	}
}

func (l *Lookup) add(token int32, at int) {
	slot := l.slot(token)
	l.before[at&(len(l.before)-1)] = *slot
	*slot = int32(at) + 1
}

func (l *Lookup) slot(token int32) *int32 {
	h := uint64(uint32(token)) * 0x9e3779b97f4a7c15
	return &l.last[h>>32&uint64(len(l.last)-1)]
}

// Next is a draft of the token behind a text and the drafts so far, and what kind it is of. Places where the same token
// stood vote for what followed them: the more tokens before them are the same, and the later they are, the
// more they count. Extend must have read all of the text. false: the last token stood nowhere.
func (l *Lookup) Next(t Text, drafts []int32) (token int32, kind Kind, ok bool) {
	if l.last == nil {
		return 0, 0, false
	}
	length := t.Len()
	tail := func(back int) int32 {
		if i := length + len(drafts) - back; i < length {
			return t.at(i)
		} else {
			return drafts[i-length]
		}
	}
	var votes [mostPlaces]struct {
		token  int32
		weight float64
	}
	candidates, longest, all, weight := 0, 0, 0.0, 1.0
	at := int(*l.slot(tail(1))) - 1
	oldest := l.known - len(l.before)
	for hops, places := 0, 0; at >= max(oldest, 0) && hops < mostHops && places < mostPlaces; hops++ {
		same, vote := 0, weight
		for same < longestMatch && same <= at && t.at(at-same) == tail(same+1) {
			same++
			vote *= matchWeight
		}
		if same > 0 {
			places++
			weight *= fade
			longest, all = max(longest, same), all+vote
			follows, i := t.at(at+1), 0
			for i < candidates && votes[i].token != follows {
				i++
			}
			candidates = max(candidates, i+1)
			votes[i].token, votes[i].weight = follows, votes[i].weight+vote
		}
		at = int(l.before[at&(len(l.before)-1)]) - 1
	}
	if candidates == 0 {
		return 0, 0, false
	}
	best := votes[0]
	for _, v := range votes[1:candidates] {
		if v.weight > best.weight {
			best = v
		}
	}
	return best.token, lookedUp(longest, best.weight/all), true
}
