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
// long is for commands that take longer than a plain test may. Of a block that is not
// run the command lines of tandem are checked, but for placeholders.
//
// Only tests of the integration module import it.
package docstest
