// Package gpu measures the CUDA engine beside what its device can do: the limits of the
// device, prefill of a prompt, decode, and KV pages copied to the host, all in one run, in
// turns. No scheduler is between.
//
// The command line imports it. The model is the caller's; Measure loads it, opens an
// engine and closes both. Its goroutines copy pages while decode runs, and are waited for.
package gpu
