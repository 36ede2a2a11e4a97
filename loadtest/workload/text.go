package workload

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// prose generates text of about a number of tokens.
type prose struct {
	// charsPerToken is the assumed bytes per token.
	charsPerToken float64
	// vocabulary repeats each word according to Zipf's law, so that a random index draws
	// one.
	vocabulary []string
	// book is the source of prompts; empty: random words.
	book string
	// partly: only the beginning of the file is used.
	partly bool
}

const (
	// vocabularyBits is the number of random bits per word.
	vocabularyBits = 12
	// maxBook bounds the text kept in memory.
	maxBook = 64 << 20
	// minBook is the minimum text for distinct prompts.
	minBook = 4 << 10
)

// newProse generates text whose r-th most common word is 1/r as frequent as the first
// (Zipf, "Human Behavior and the Principle of Least Effort", 1949), rounded to multiples
// of 2^-12.
func newProse(charsPerToken float64) *prose {
	list := strings.Fields(words)
	total := 0.0
	for i := range list {
		total += 1 / float64(i+1)
	}
	p := &prose{charsPerToken: charsPerToken}
	sum := 0.0
	for i, word := range list {
		sum += 1 / float64(i+1)
		for float64(len(p.vocabulary)) < sum/total*(1<<vocabularyBits) && len(p.vocabulary) < 1<<vocabularyBits {
			p.vocabulary = append(p.vocabulary, word)
		}
	}
	for len(p.vocabulary) < 1<<vocabularyBits { // rounding may leave it short
		p.vocabulary = append(p.vocabulary, list[len(list)-1])
	}
	return p
}

// readProse takes text from a file.
func readProse(path string, charsPerToken float64) (*prose, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--text-file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBook+1))
	if err != nil {
		return nil, fmt.Errorf("--text-file: %w", err)
	}
	p := &prose{charsPerToken: charsPerToken}
	if len(data) > maxBook {
		data, p.partly = data[:runeStart(string(data[:maxBook+1]), maxBook)], true
	}
	p.book = strings.TrimSpace(strings.TrimPrefix(string(data), "\ufeff"))
	if !utf8.ValidString(p.book) {
		valid, offset := strings.ToValidUTF8(p.book, "?"), 0 // the replacement is not '?'
		for p.book[offset] == valid[offset] {
			offset++
		}
		return nil, fmt.Errorf("--text-file: %s:%d: not UTF-8: expected plain text", path, 1+strings.Count(p.book[:offset], "\n"))
	}
	if len(p.book) < minBook {
		return nil, fmt.Errorf("--text-file: %s has %d bytes of text: prompts would be too alike, expected %d or more", path, len(p.book), minBook)
	}
	return p, nil
}

// bytes is the length of text for n tokens.
func (p *prose) bytes(n int) int { return max(1, int(float64(n)*p.charsPerToken)) }

// tokens is the assumed number of tokens of a text.
func (p *prose) tokens(text string) int {
	return int((float64(len(text)) + p.charsPerToken - 1) / p.charsPerToken)
}

// append appends text for n tokens. With equal random numbers, less is a prefix of more,
// except for a character split at the end.
func (p *prose) append(text []byte, pcg *rand.PCG, n int) []byte {
	if p.book != "" {
		return p.appendCut(text, pcg, p.bytes(n))
	}
	end := len(text) + p.bytes(n)
	for len(text) < end {
		text = p.appendSentence(text, pcg, end)
	}
	return text[:end] // words are ASCII
}

// appendSentence appends a sentence and a space, or as much as fits before end.
func (p *prose) appendSentence(text []byte, pcg *rand.PCG, end int) []byte {
	bits := pcg.Uint64()
	length := 6 + int(bits%13)
	comma := 2 + int(bits>>8%16) // after this word, if the sentence is long enough
	first := len(text)
	left := 0
	for i := 0; i < length && len(text) < end; i++ {
		if left == 0 {
			bits, left = pcg.Uint64(), 64/vocabularyBits
		}
		if i > 0 {
			if i == comma && i < length-1 {
				text = append(text, ',')
			}
			text = append(text, ' ')
		}
		text = append(text, p.vocabulary[bits&(1<<vocabularyBits-1)]...)
		bits >>= vocabularyBits
		left--
	}
	text[first] -= 'a' - 'A'
	return append(text, '.', ' ')
}

// appendCut appends size bytes of the book, from a random word on, wrapping around at its
// end.
func (p *prose) appendCut(text []byte, pcg *rand.PCG, size int) []byte {
	at := int(pcg.Uint64() % uint64(len(p.book)))
	if space := strings.IndexFunc(p.book[runeStart(p.book, at):], unicode.IsSpace); space >= 0 {
		at = runeStart(p.book, at) + space
		at += len(p.book[at:]) - len(strings.TrimLeftFunc(p.book[at:], unicode.IsSpace))
	} else {
		at = 0
	}
	if at == len(p.book) {
		at = 0
	}
	for size > 0 {
		piece := p.book[at:]
		if len(piece) > size {
			piece = piece[:runeStart(piece, size)]
			size = len(piece)
		}
		text = append(text, piece...)
		size -= len(piece)
		if at = 0; size > 0 {
			text = append(text, '\n')
			size--
		}
	}
	return text
}

// runeStart is the start of the character that contains byte at.
func runeStart(text string, at int) int {
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return at
}

// cut returns the beginning of a text, for n tokens.
func (p *prose) cut(text string, n int) string {
	if size := p.bytes(n); size < len(text) {
		return text[:runeStart(text, size)]
	}
	return text
}
