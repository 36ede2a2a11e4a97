// Package router takes requests, turns text into tokens, picks workers, joins
// their two token streams into one, survives their deaths and turns tokens back
// into text. It serves Inference and Requests to clients and Control to
// operators, who have a listener of their own, and is a client of Prefill, Decode and
// Worker. KV bytes never pass through it.
//
// Only cmd/tandem and integration tests import it. It assembles its parts, a package each:
//
//	openai         OpenAI's HTTP API, in terms of Inference
//	preprocess     a request checked and made into a plan: models, prompts, sampling
//	serving        one request's life: worker streams, text, what clients have not read
//	routingdriver  drives pkg/routing, which chooses the workers
//	scalingdriver  drives pkg/scaling, which says how many workers each pool should have
//	workers        the connections to workers, and who answers there
//	peers          asks other routers for a request that this one does not know
//	control        what operators call: workers, drains, policy, budget
//	records        how the last requests were routed
//	latencybudget  what requests took, against what is declared
//	clienterr      the statuses that callers get
//
// Goroutines: Run owns one for each watch, one for timers and one that publishes the
// queue; serving and workers say what theirs are. Stop ends requests, the end of Run's
// context ends everything else, and both wait.
package router
