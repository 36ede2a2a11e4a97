// Package toolcalls knows how families of models write tool calls: which grammar holds an
// output to that format (Format.Tags), and how text in it is read (Parser).
//
// The router imports it. It starts no goroutines. A Parser is for one goroutine; all else does
// not change.
package toolcalls
