package openai

// KnownFields are the members of a request that are looked for, and those that are known to
// mean nothing.
func KnownFields(chat bool) map[string]bool {
	if chat {
		return newKind(parseChat).known
	}
	return newKind(parseCompletion).known
}

// AppendJSON is appendJSON.
func AppendJSON(b []byte, text string) []byte { return appendJSON(b, text) }

// Marshal is marshal.
func Marshal(value any) ([]byte, error) { return marshal(value) }
