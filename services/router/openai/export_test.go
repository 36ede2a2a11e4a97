package openai

// KnownFields are the members of a request that are looked for, and those that are known to
// mean nothing.
func KnownFields(chat bool) map[string]bool {
	if chat {
		return newKind(parseChat).known
	}
	return newKind(parseCompletion).known
}
