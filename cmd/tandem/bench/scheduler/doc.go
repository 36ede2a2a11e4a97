// Package scheduler measures what a worker's scheduler does to requests: long and short
// prompts on one worker, under one policy after the other. It measures times to first
// tokens, gaps between tokens, how long those that decode are stalled by the prompts of
// others, and what is computed again after preemptions.
//
// Virtual drives the scheduler alone, on virtual time, with steps that take what a
// profile says: the same seed gives the same figures, but for the scheduler's own time.
// Real drives worker.Driver and the CPU engine, in real time.
//
// The command line imports it. Real starts one goroutine for each policy's run and
// waits for it; it takes the weights from its caller and closes the engines that it
// opens.
package scheduler
