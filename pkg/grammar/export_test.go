package grammar

// Begins says whether something that the grammar allows begins with text.
func (g *Grammar) Begins(text []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.masks.walkText(g.masks.first, text) != nil
}
