//go:build !linux

package finetimer

func newPrecise(bool) Timer { return nil }
