package openai

// answer is the answer to a completion or a chat, or one message of a stream of
// it.
type answer struct {
	ID          string   `json:"id"`
	Object      string   `json:"object"`
	Created     int64    `json:"created"` // Unix time, seconds
	Model       string   `json:"model"`
	Fingerprint string   `json:"system_fingerprint,omitempty"`
	Choices     []choice `json:"choices"`
	// PromptLogprobs of a chat is vLLM's; see choice.
	PromptLogprobs []promptToken `json:"prompt_logprobs,omitempty"`
	// Usage: nil where nothing is said of it, null where a stream says it last.
	Usage *maybeUsage `json:"usage,omitempty"`
}

// choice is one answer. Which of its texts is there says what it is of.
type choice struct {
	Index        int      `json:"index"`
	Text         *string  `json:"text,omitempty"`    // of a completion
	Message      *message `json:"message,omitempty"` // of a chat
	Delta        *delta   `json:"delta,omitempty"`   // of a chat that is streamed
	Logprobs     any      `json:"logprobs"`          // *tokenLogprobs, *chatLogprob or nil
	FinishReason *string  `json:"finish_reason"`
	// PromptLogprobs is how likely the tokens of the prompt are, where it was asked for.
	PromptLogprobs []promptToken `json:"prompt_logprobs,omitempty"`
	// Timing and Route come with the end of a choice whose request asked for them.
	Timing map[string]float64 `json:"timing_ms,omitempty"`
	Route  *route             `json:"route,omitempty"`
}

type message struct {
	Role    string  `json:"role"`
	Content *string `json:"content"` // null where there are calls alone
	Refusal *string `json:"refusal"`
	calls
}

// calls are those that a message makes, or what a message of a stream adds to them. Old is how
// they were said before there could be several.
type calls struct {
	Calls []toolCall `json:"tool_calls,omitempty"`
	Old   *function  `json:"function_call,omitempty"`
}

// delta is what a message of a stream adds.
type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
	calls
}

// maybeUsage is usage, or null.
type maybeUsage struct{ *usage }

type usage struct {
	Prompt     uint32         `json:"prompt_tokens"`
	Completion uint32         `json:"completion_tokens"`
	Total      uint32         `json:"total_tokens"`
	Details    *promptDetails `json:"prompt_tokens_details,omitempty"`
	// CompletionDetails is there if there were any.
	CompletionDetails *completionDetails `json:"completion_tokens_details,omitempty"`
}

// completionDetails counts drafted tokens, OpenAI's predictions.
type completionDetails struct {
	Accepted uint32 `json:"accepted_prediction_tokens"`
	Rejected uint32 `json:"rejected_prediction_tokens"`
}

type promptDetails struct {
	Cached uint32 `json:"cached_tokens"`
}

// MarshalJSON writes null for no usage.
func (m maybeUsage) MarshalJSON() ([]byte, error) {
	if m.usage == nil {
		return []byte("null"), nil
	}
	return marshal(m.usage)
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

// modelObject is a model. Root and MaxModelLen are vLLM's: the real name of one
// that was asked for by another, and its context in tokens.
type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"`
	MaxModelLen uint32 `json:"max_model_len"`
}
