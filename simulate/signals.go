package simulate

// Signals is what a cluster's parts told each other so far, and what routers decided. Each message
// goes to every router.
type Signals struct {
	// LoadReports and BlockEvents are messages of workers, RouterReports those of routers. Blocks
	// is how many blocks the events name.
	LoadReports, BlockEvents, Blocks, RouterReports int
	// Decisions are requests that routers dispatched or refused, hedged attempts included.
	Decisions int
}

// PrefixUse is what prefill workers found of prompts, and what they asked block stores for.
type PrefixUse struct {
	// PromptTokens are those of prompts that prefill workers began to compute. CachedTokens of them
	// were in the worker's prefix cache then, FetchedTokens of those had come from a store for it.
	PromptTokens, CachedTokens, FetchedTokens int
	// Fetches and Puts count what came of hints at stores and of what was near its eviction, by
	// result, as the metrics of live workers do; what was fetched is not among them.
	Fetches, Puts map[string]int
}

// PrefixUse is what was found and asked for so far.
func (c *Cluster) PrefixUse() PrefixUse { return c.prefixes }

// Since is what was told and decided since before.
func (s Signals) Since(before Signals) Signals {
	return Signals{
		LoadReports: s.LoadReports - before.LoadReports, BlockEvents: s.BlockEvents - before.BlockEvents, Blocks: s.Blocks - before.Blocks,
		RouterReports: s.RouterReports - before.RouterReports, Decisions: s.Decisions - before.Decisions,
	}
}

// Messages is how many messages were published.
func (s Signals) Messages() int { return s.LoadReports + s.BlockEvents + s.RouterReports }

// Signals is what was told so far.
func (c *Cluster) Signals() Signals { return c.signals }

// IndexedBlocks is how many different KV blocks each router knows to be in prefix caches.
func (c *Cluster) IndexedBlocks() (blocks []int) {
	for _, r := range c.routers {
		blocks = append(blocks, r.core.IndexedBlocks())
	}
	return blocks
}
