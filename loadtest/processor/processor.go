// Package processor says which cores this process may use, starts others on some of
// them, and tells how much processor time they have used.
//
// Anything may import it. It owns nothing. Only Linux can do all of it.
package processor
