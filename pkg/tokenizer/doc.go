// Package tokenizer turns text into token ids and back, exactly as the
// tokenizer.json beside a model says: byte-level BPE in the form that Hugging
// Face's tokenizers library writes.
//
// Exact means that every id equals that library's. What this package does not
// implement it refuses when it reads the file, by the name of the component; it
// never comes near instead. What it implements:
//
//   - model BPE without dropout, subword prefix or suffix, whose vocabulary has
//     all 256 byte symbols (which makes unk_token, fuse_unk and byte_fallback
//     without effect), with ignore_merges either way;
//   - pre-tokenizers ByteLevel, Split with one of the patterns listed in
//     patterns.go, and Sequence of those, ByteLevel last;
//   - added tokens with single_word, lstrip, rstrip, normalized and special;
//   - post-processors TemplateProcessing (for one sequence), ByteLevel, Sequence;
//   - decoder ByteLevel, no normalizer.
//
// Truncation and padding that the file asks for are not applied: how much of a
// prompt is kept is the caller's decision.
//
// Letters, numbers and white space are those of the Go standard library's Unicode
// tables (unicode.Version; 15.0.0 in Go 1.26). A character assigned in a later
// version counts as neither letter nor number here, until Go's tables have it.
//
// Text that is not UTF-8 is encoded byte by byte: each byte that belongs to no
// character is a symbol of its own.
//
// Anything under pkg, services and cmd may import it. A Tokenizer does not change
// after it is made and may be used by any number of goroutines; a Stream belongs
// to one. It starts no goroutines.
package tokenizer
