package tokenizer

// pieceTable has the bytes that each id stands for. Ids may have gaps.
type pieceTable struct {
	pieces []string
	known  []bool // apart, because a token may be empty
}

func (p *pieceTable) size() int { return len(p.pieces) }

func (p *pieceTable) has(id int32) bool {
	return id >= 0 && int(id) < len(p.known) && p.known[id]
}

// set makes the table longer where it must; the caller bounds id.
func (p *pieceTable) set(id int32, piece string) {
	for int(id) >= len(p.pieces) {
		p.pieces = append(p.pieces, make([]string, int(id)+1-len(p.pieces))...)
		p.known = append(p.known, make([]bool, int(id)+1-len(p.known))...)
	}
	p.pieces[id], p.known[id] = piece, true
}

// get is "" for an id that no token has.
func (p *pieceTable) get(id int32) string {
	if id < 0 || int(id) >= len(p.pieces) {
		return ""
	}
	return p.pieces[id]
}
