//go:build !linux

package pace

func newPrecise(bool) Timer { return nil }
