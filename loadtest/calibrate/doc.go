// Package calibrate measures the load generator itself: a stand-in with known
// latency runs in one process, the generator in another, each on a core of its own,
// and what the one reports is held against what the other sent.
//
// The command line imports it. Measure starts the two processes and waits for both;
// Standin and Load are what they run.
package calibrate
