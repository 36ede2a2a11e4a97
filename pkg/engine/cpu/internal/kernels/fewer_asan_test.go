//go:build asan

package kernels_test

// fewer is what a test of random shapes divides its rounds by: AddressSanitizer and
// UBSan make each take some ten times as long.
const fewer = 4
