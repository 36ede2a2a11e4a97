// Package tokenrate measures a tokenizer: how many tokens a second one core encodes
// and decodes, beside how fast the same core, in the same run, reads the same text
// character by character and asks one table about each, which no tokenizer that looks
// at characters can outrun.
//
// The command line imports it. It owns nothing; Measure starts a goroutine for each
// thread and waits for them.
package tokenrate
