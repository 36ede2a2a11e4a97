//go:build !linux

package pace

func newPrecise() Timer { return nil }
