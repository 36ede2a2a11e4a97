// Package routing is the router's policy and queue: which workers there are, how
// busy each is, what waits, and which worker a request goes to. It is a state
// machine, Handle(now, event) → actions, so that live traffic, tests and
// simulation run the same policy.
//
// What is in which file:
//
//	state machine      router, messages, config
//	choosing           decide: filter (which workers may take the request), score (what it
//	                   would cost on each), pick (which one it is); aggregated (both phases on
//	                   one worker), look (some of very many workers), kv_holder, hedge
//	policies           policies, policy_*; pooluse (how all requests use the pools), pools (what
//	                   they serve then), undisturbed (first tokens), lengths (of prompts let in)
//	predictions        predict (corrections by what came true), steptime, worker_times, doubted (not measured),
//	                   slow_workers, prompt_slowdown, network, gaps, stores (fetching blocks)
//	prefixes           prefix (hashes), snapshots (the index), expected (prompts on their way)
//	queue              queue, pump (who goes next), held_requests (kept back from busy workers),
//	                   waking, shares (of tenants), tenants, classes
//	requests           requests (those that run), arrivals, retries, silence, refuse, unserved
//	workers            view (what etcd lists), handshake, worker, facts, groups, departed, redial
//	their load         load (what this router sent), shared_blocks (of its requests), reports (what
//	                   they say)
//	what is wrong      suspicion (workers), paths (pairs that do not reach each other)
//	other routers      peerload (what is told), peerload_table (what was heard), peer_models
//	versions of models version, version_served, version_pins, version_foreign
//	for people         explain, explain_refusal
//
// Three rules shape it. The router counts its own in-flight work, and load
// reports only correct that count, because reports are old when they arrive. A
// broken connection removes a worker from choice at once, while a worker that
// only etcd lost is kept for a while. The choice is random among the near-best,
// so that several routers do not all send to the same best worker.
//
// Whoever drives it imports it: the router, tests, a simulator. It owns the view of the
// workers, the queue and the in-flight accounting. It starts no goroutine, reads no
// clock, takes no lock and does no I/O: its driver serializes calls.
package routing
