// Package handover measures the whole path of KV from one worker to another: a mesh
// of a router, a prefill and a decode worker, each a process of its own, that serves
// prompts apart, and the same prompts on one worker, whose tokens have to be equal.
//
// The command line imports it. Measure owns the meshes that it starts and stops them.
package handover
