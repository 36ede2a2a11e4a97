package receiver

// Stats is a view of the core at one moment, and counts since its start.
type Stats struct {
	// Reserved, Open and Ending count the transfers that nobody came for yet, that
	// are under way, and that are over but not drained.
	Reserved, Open, Ending int
	// QuarantinedBlocks are those of Ending: nobody may have them yet.
	QuarantinedBlocks int
	// Streams counts the senders' streams.
	Streams int
	// Totals are counts since the start.
	Totals
}

// Totals count since the core's start.
type Totals struct {
	// Committed, Failed (at this side), Aborted (by the sender), Broken (with
	// their stream) and Cancelled (by their owner) count how transfers ended.
	Committed, Failed, Aborted, Broken, Cancelled uint64
	// PayloadBytes counts the bytes that are in their pages.
	PayloadBytes uint64
}

// Stats is a view of the core.
func (c *Core) Stats() Stats {
	s := Stats{Streams: len(c.streams), Totals: c.totals}
	for _, t := range c.transfers {
		switch t.state {
		case reserved:
			s.Reserved++
		case open, committing:
			s.Open++
		default:
			s.Ending++
			s.QuarantinedBlocks += len(t.blocks)
		}
	}
	return s
}
