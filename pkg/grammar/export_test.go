package grammar

import "weak"

// MaxDepth is how deep rules may be in one another.
const MaxDepth = maxDepth

// Begins says whether something that the grammar allows begins with text.
func (g *Grammar) Begins(text []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.masks.walkText(g.masks.first, text) != nil
}

// States is how many states a grammar keeps: those that its lexemes and places lead to.
func (g *Grammar) States() int {
	seen := make(map[*state]bool)
	var left []*state
	add := func(s *state) {
		if s != nil && !seen[s] {
			seen[s] = true
			left = append(left, s)
		}
	}
	m := &g.masks
	for i := range m.program.nodes {
		if l := m.program.nodes[i].lexeme; l != nil {
			add(l.first)
		}
	}
	for _, p := range m.places {
		for _, t := range p.threads {
			add(t.at)
		}
	}
	for len(left) > 0 {
		s := left[len(left)-1]
		left = left[:len(left)-1]
		for b := range 256 {
			to, _ := s.get(byte(b))
			add(to)
		}
		add(s.a)
		add(s.b)
		add(s.within)
	}
	return len(seen)
}

// Size is how many bytes a grammar takes, about.
func (g *Grammar) Size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(g.size)
}

// KnownBytes is what a grammar keeps of what becomes of tokens in calls, about.
func (g *Grammar) KnownBytes() int { return g.masks.knownBytes }

// Blocked is how many tokens it remembers that strings cannot have.
func (g *Grammar) Blocked() int { return g.masks.blockedIDs }

// SizeOfFound is how much of Size is for both.
func (g *Grammar) SizeOfFound() int {
	without := g.masks
	without.knownBytes, without.blocked, without.blockedIDs = 0, nil, 0
	return int(g.masks.size() - without.size())
}

// ClassBytes is what the tries of classes of a vocabulary take, about.
func (v *Vocabulary) ClassBytes() (bytes int64) {
	for _, trie := range v.classTries {
		bytes += trie.bytes.Load()
	}
	return bytes
}

// SetMostClassBytes sets how much they may take.
func (v *Vocabulary) SetMostClassBytes(bytes int64) { v.mostClassBytes = bytes }

// WatchClassTrie says of one of them whether it stays.
func (v *Vocabulary) WatchClassTrie() (stays func() bool) {
	var watched weak.Pointer[classTrie]
	for _, trie := range v.classTries {
		watched = weak.Make(trie)
	}
	return func() bool { return watched.Value() != nil }
}

// SetMost sets how many bytes of grammars a cache keeps.
func (c *Cache) SetMost(bytes int) { c.most = bytes }

// Effort is the work that an output took, without that of its drafts.
func (c *Constraint) Effort() int { return c.effort }

// MostEffort is what a step may take: what it may begin, and the mask that was begun last.
const MostEffort = stepEffort + maxMaskWork

// Places is how many places an output keeps.
func (c *Constraint) Places() int { return len(c.places) }

// Take is what outputs do to a budget.
func (b *Budget) Take(effort int) { b.take(effort) }
