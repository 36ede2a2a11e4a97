// Package engine measures the CPU engine beside what the machine can do: prefill of a
// prompt as a share of the processor's peak, decode as a share of the speed of memory,
// all in one run, in turns, on the same threads; decode takes turns with reading every
// 50 ms, since others change how fast memory is. No scheduler is between.
//
// The command line imports it. The weights are the caller's; Measure opens an engine on
// them and closes it. It starts no goroutines.
package engine
