// Package docstest finds the commands that the pages of the repository print, for a
// test that runs them.
//
// A fenced block of shell commands says behind its language whether it is run, of
// which GitHub shows nothing:
//
//	```sh run
//	```sh run long
//	```sh norun: REASON
//
// long is for commands that take longer than a plain test may. In a block marked norun,
// tandem's commands and flags are still checked against the binary; placeholders are not.
//
// Only tests of the integration module import it. It starts no goroutines.
package docstest
