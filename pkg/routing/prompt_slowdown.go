package routing

// What decodes on a prefill worker slows the prompts that come while it lasts: each step takes the
// time of its tokens, too, and prompts have no more of it than the step budget or the objective of a
// token leaves. Most of those prompts have not come yet, so that the queue does not show them.

// promptsPerMs is how many prompts come in a millisecond to each of the model's prefill workers that
// get aggregated requests, and sent, of how many of these the KV is sent to a decode worker. Each router
// whose last report counts is taken to get as many as this one.
func (rt *Router) promptsPerMs(model string) (prompts, sent float64) {
	d, workers := rt.demandFor(model), rt.groups().aggregatedPrefillsOf[model]
	if d == nil || workers == 0 {
		return 0, 0
	}
	each := float64(1+len(rt.peerLoads.told)) / 1000 / float64(workers)
	return d.prompts.perSecond(rt.now) * each, d.sent.perSecond(rt.now) * each
}

// slowsPromptsMs is how much longer prompts take, all together, that come to a prefill worker while it
// decodes a request's answer. So many come in a millisecond. Most of that is the cost of the first
// sequence that decodes there. Others end before long, so each is charged as if it were the first, and
// for its own tokens beside those of the others.
func (rt *Router) slowsPromptsMs(s *search, c *candidate, prompts float64) float64 {
	w := c.worker
	model, known := w.measured()
	if !known || prompts <= 0 {
		return 0
	}
	d := rt.demandFor(s.request.Model)
	tokens := max(int(d.prompt), 1)
	// As in a queue of one server, the more of its time prompts take, the longer each waits.
	takes := func(decoding, context int) float64 {
		steps := c.steps(model, tokens, decoding, context)
		if decoding == 0 {
			return steps.ms(tokens, 0) / (1 - min(prompts*steps.workMs(tokens), mostPrompts))
		}
		if each := s.entry.tpot; each > 0 && w.keepsTPOT {
			steps = steps.paced(milliseconds(each), w.blockTokens)
		}
		return steps.ms(tokens, 0)/(1-min(prompts*steps.workMs(tokens), mostPrompts)) + steps.otherMs/2 // what is left of one
	}
	longer := takes(1, s.request.Tokens) - takes(0, 0)
	if load := &c.load; load.decoding > 0 {
		longer += takes(load.decoding+1, load.decodingContext+s.request.Tokens) - takes(load.decoding, load.decodingContext)
	}
	return max(longer, 0) * prompts * d.answer() * c.tpotMs
}
