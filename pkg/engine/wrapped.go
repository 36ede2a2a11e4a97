package engine

// Wrapping is an Engine around another one that computes its steps.
type Wrapping interface {
	// Wrapped is the other one.
	Wrapped() Engine
}

// As is the engine as a T, or the first of those that it wraps that is one.
func As[T any](e Engine) (as T, is bool) {
	for {
		if as, is = e.(T); is {
			return as, true
		}
		w, wraps := e.(Wrapping)
		if !wraps {
			return as, false
		}
		e = w.Wrapped()
	}
}
