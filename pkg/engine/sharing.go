package engine

import "os"

// Sharing is Pages in the host's memory that other processes of this host can map. Its methods
// are safe for concurrent use.
type Sharing interface {
	// Shares reports whether they can: File is not nil as long as the pages are open.
	Shares() bool
	// File holds the pages from its start, block after block, the slices of all layers of a
	// block side by side. Its size cannot change. Whoever maps it can read and write every
	// page. The pages own it; nil after they were closed.
	File() *os.File
}
