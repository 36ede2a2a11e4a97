// Package tokenizer turns text into token ids and back, exactly as the
// tokenizer.json beside a model says, in the form that Hugging Face's tokenizers
// library writes: byte-level BPE (GPT-2, Llama 3, Qwen, Mistral Nemo) and BPE over
// characters with byte fallback (Llama 2, Mistral).
//
// Exact means that every id equals that library's. What this package does not
// implement it refuses when it reads the file, by the name of the component; it
// never comes near instead. What it implements:
//
//   - normalizers NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend,
//     Replace (of a String, of \s+ and of " {2,}") and Sequence;
//   - pre-tokenizers ByteLevel, Split (by a String, or by one of the patterns listed
//     in patterns.go, with every behavior), Metaspace, Digits and Sequence, with
//     ByteLevel last; or none. Metaspace with prepend_scheme first asks whether a
//     piece was at the start of the text before it was normalized: it is refused
//     behind a normalizer that may take that start away;
//   - model BPE without dropout, subword prefix or suffix, with ignore_merges either
//     way, with unk_token and fuse_unk: behind ByteLevel over bytes, each of which needs
//     a symbol unless no assigned character has it (C0, C1, F1, F2, F5 to FF);
//     otherwise over characters, with byte_fallback;
//   - added tokens with single_word, lstrip, rstrip, normalized and special;
//   - post-processors TemplateProcessing (for one sequence), ByteLevel, Sequence;
//   - decoders ByteLevel, ByteFallback, Fuse, Strip, Replace (of a String), Metaspace
//     and Sequence, except that of those that look at single tokens none may stand
//     behind one that makes one of them all.
//
// An added token that model.vocab does not have gets the id that added_tokens gives
// it. The library numbers such tokens itself, from the end of the vocabulary on in the
// order of the file, and warns where the file says something else: in a file whose ids
// leave gaps or are out of order, the ids here are the file's.
//
// Truncation and padding that the file asks for are not applied: how much of a
// prompt is kept is the caller's decision. tokenizer_config.json is not read: where
// transformers' AutoTokenizer changes what tokenizer.json says (add_bos_token and
// add_eos_token of Llama's classes make a new post-processor, add_prefix_space
// a new normalizer, clean_up_tokenization_spaces takes spaces out of decoded text),
// this package does what tokenizer.json says.
//
// Letters, numbers and white space are those of the Go standard library's Unicode
// tables (unicode.Version; 15.0.0 in Go 1.26). A character assigned in a later
// version counts as neither letter nor number here, until Go's tables have it; the
// library has those of the Oniguruma it was built with (14.0 in 6.9.8, 16.0 in
// 6.9.10). Normal forms are those of Unicode 12.1, as in the library: later
// characters neither decompose nor combine.
//
// A Stream says what Decode says, id by id, and behind a prompt what Decode adds to the
// prompt's text. It differs from Decode, and so from the library, only where the file's
// decoder has ByteFallback and a run of byte tokens turns out not to be UTF-8: the
// library then makes U+FFFD of all its bytes, while a Stream has given the characters
// that were complete before that place. (Strip, Replace of several characters and a
// second ByteFallback need whole tokens: where one of them stands between ByteFallback
// and Fuse, a Stream waits for the end of a run too, and does not differ, but for a run that
// began in the prompt.)
//
// Text that is not UTF-8, which the library never sees, is encoded byte by byte: each
// byte that belongs to no character is a symbol of its own, by its byte token where
// symbols are characters.
//
// Time is in proportion to the length of the text, whatever it is: a text that no
// pre-tokenizer cuts is cut where no merge can reach across, and a piece that cannot
// be cut, however long, is merged in near-linear time with some twenty bytes of
// memory for each symbol. Short pieces are remembered, a bounded number of them.
//
// Anything under pkg, services, simulate and cmd may import it. A Tokenizer does not change
// after it is made, but for scratch memory, and may be used by any number of
// goroutines; a Stream belongs to one. It starts no goroutines.
package tokenizer
