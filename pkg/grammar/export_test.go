package grammar

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
