package replay

import (
	"context"
	"io"
)

// RunWithout is Run without one event.
var RunWithout = func(number uint64) func(context.Context, io.Reader) (Result, error) {
	return func(ctx context.Context, in io.Reader) (Result, error) {
		return run(ctx, in, func(n uint64) bool { return n == number })
	}
}

// RequestOf is the request that an event of routing is of; "": it is of none.
var RequestOf = requestOf
