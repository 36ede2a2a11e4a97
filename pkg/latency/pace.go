package latency

// What workers leave to prompts in steps beside sequences with an objective for the time of a token
// (pkg/scheduler). Routers and sizes of pools predict with the same.
const (
	// PaceShare is the share of an objective that steps are planned with. The rest is for the time
	// between steps, and for what predictions miss.
	PaceShare = 0.95
	// PaceBurst is how many times its share of what sequences leave a step may have for prompts. It often
	// has it, since most sequences have saved some time.
	PaceBurst = 2
	// PaceWithoutPrompts is how many steps in a row may have no prompt because a block takes longer than a
	// step has to spare. After as many there is often enough for one; if not, it is computed all the same.
	PaceWithoutPrompts = 3
)

// PromptsPerBase is how many times as long as an empty step the prompts of one make it long enough: then
// workers (pkg/scheduler) add no other. It would delay those in the step, and save at most a ninth of
// the time. Where nobody decodes, prompts may take twice as much.
const PromptsPerBase = 8
