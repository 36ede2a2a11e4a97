// Package jinja renders templates in the part of Jinja2 that chat templates are
// written in, as Jinja2 3.1 does inside transformers: blocks trimmed, loop
// controls, a sandbox whose values cannot be changed, generation blocks.
//
// Only pkg/chat imports it. docs/decisions/0006-chat-templates.md says why it is
// not a library. Templates are strangers' downloads: nothing in them reaches a
// file, and source, nesting, work, memory and output are bounded. A construct that
// is not known is an error of Parse that names it and its line.
//
// It starts no goroutine. A parsed Template may be used by several at once.
package jinja

import "fmt"

// Bounds of a template.
const (
	// MaxSourceBytes is the longest source that Parse takes.
	MaxSourceBytes = 1 << 20
	maxNesting     = 64  // of blocks and expressions in the source
	maxNameBytes   = 256 // of a variable, an attribute, a filter
	maxDepth       = 512 // of evaluation: macros calling macros, long chains of operators
	maxRange       = 1 << 20
)

// Error is what is wrong with a template, or with what it was given.
type Error struct {
	// Line of the template, from 1.
	Line int
	// Message says what, in Jinja2's terms.
	Message string
	// Raised: the template itself refused, with raise_exception.
	Raised bool
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }
