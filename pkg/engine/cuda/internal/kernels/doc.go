// Package kernels is what runs on the GPU: CUDA C++, one file a family, compiled ahead of
// time to the PTX that is part of this package (`make kernels`), and what the host needs
// to launch it. tdm_cuda.h is the contract; internal/emulationtest runs the same sources on a
// CPU.
//
// Only engine/cuda and its tests import it. Loading starts goroutines, which have ended when
// it returns.
package kernels
