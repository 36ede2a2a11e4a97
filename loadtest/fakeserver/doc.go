// Package fakeserver is a server whose latency is known: it computes nothing, and
// sends tokens at moments that were laid down before. What a load generator
// reports of it can be held against what was injected.
//
// Anything may import it. A Schedule has no goroutine, clock or lock. A Wheel owns
// one goroutine, which Close ends; a Server owns its listener's goroutines, its
// Wheel, and all requests that it serves.
package fakeserver
