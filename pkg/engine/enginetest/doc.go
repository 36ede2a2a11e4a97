// Package enginetest holds the tests that every engine.Engine has to pass. An
// engine's own tests call Run, and RunLogits if it computes logits.
//
// Only tests import it. It starts no goroutines.
package enginetest
