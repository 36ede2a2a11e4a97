// Package profile measures how long an engine's steps take, over a grid of chunk
// sizes, batch sizes and contexts, and makes a latency.Profile of it.
//
// `tandem profile` imports it, and so does the benchmark of the engine, which judges
// limits alike. It owns nothing: the engine is the caller's, and nobody else may step it
// meanwhile. It starts no goroutines.
package profile
