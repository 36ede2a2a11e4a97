// Package calibrate measures the load generator itself: a fake server with known
// latency runs in one process, the generator in another, each on a core of its own,
// and what the one reports is held against what the other sent.
//
// The command line imports it. Measure starts the two processes and waits for both;
// Serve and Load are what they run.
package calibrate
