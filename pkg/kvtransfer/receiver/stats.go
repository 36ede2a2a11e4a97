package receiver

// Stats is a snapshot of the core with counts since its start.
type Stats struct {
	// Reserved, Open and Ending count the transfers not yet opened, in progress, and ended
	// but not drained.
	Reserved, Open, Ending int
	// Streams is the number of streams, Mappings of the sessions that have the pages mapped.
	Streams, Mappings int
	Totals
}

// Totals counts since the start of the core.
type Totals struct {
	// Transfers by outcome: Committed, Failed (by this side), Aborted (by the sender),
	// Broken (by the end of a stream) and Cancelled (by their owner).
	Committed, Failed, Aborted, Broken, Cancelled uint64
	// PayloadBytes counts the payload bytes written to pages.
	PayloadBytes uint64
}

// Stats returns a snapshot.
func (c *Core) Stats() Stats {
	s := Stats{Streams: len(c.streams), Mappings: len(c.mappings), Totals: c.totals}
	for _, t := range c.transfers {
		switch t.state {
		case reserved:
			s.Reserved++
		case open, committing:
			s.Open++
		default:
			s.Ending++
		}
	}
	return s
}
