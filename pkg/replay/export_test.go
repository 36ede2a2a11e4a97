package replay

import "io"

// RunWithout is Run without one event.
var RunWithout = func(number uint64) func(io.Reader) (Result, error) {
	return func(in io.Reader) (Result, error) { return run(in, func(n uint64) bool { return n == number }) }
}
