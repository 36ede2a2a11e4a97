// Package grammar holds an output to a form: a regular expression, one of some texts, a grammar,
// JSON, JSON of a schema, or free text in which such JSON stands between fixed texts. Compile
// makes a Grammar, a pushdown automaton over bytes, whose regular parts are automata that are
// built as they are walked. With a Vocabulary a Grammar says which tokens may come after those so
// far (Constraint), as a set of ids that the sampler obeys.
//
// The state of an output is a function of its tokens: a request that moves to another worker
// takes nothing with it but those.
//
// The router compiles grammars to refuse wrong ones; workers mask tokens by them. Anything under
// pkg, services and cmd may import it. It starts no goroutines.
//
// A Grammar, a Vocabulary and a Cache are safe for concurrent use; a Constraint is for one
// goroutine, beside which another one may call Prepare. A Grammar's lock is taken before those of the
// Vocabulary; no other is taken under one.
package grammar
