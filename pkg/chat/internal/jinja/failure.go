package jinja

import (
	"errors"
	"fmt"
)

// failure carries an error from the depth of an evaluation up to Render, which
// returns it: nothing in between has anything to tidy up. It never leaves the
// package. text/template does the same.
type failure struct{ error }

// fail ends the rendering. It has a result so that functions of values can end
// with it, and does not return.
func fail(format string, args ...any) any { return failWith(fmt.Errorf(format, args...)) }

func failWith(err error) any { return throw(failure{err}) }

func throw(reason any) any {
	panic(reason) //nolint:forbidigo // Render makes it an error
}

func must[T any](v T, err error) T {
	if err != nil {
		failWith(err)
	}
	return v
}

// blame names in a failure whose it is, by a format of the name and of the error.
// It is deferred.
func blame(format, name string) {
	reason := recover()
	if f, ok := reason.(failure); ok {
		if located := (*Error)(nil); !errors.As(f.error, &located) {
			reason = failure{fmt.Errorf(format, name, f.error)}
		}
	}
	if reason != nil {
		throw(reason)
	}
}
