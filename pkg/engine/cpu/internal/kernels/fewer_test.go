//go:build !asan

package kernels_test

// fewer is what a test of random shapes divides its rounds by.
const fewer = 1
