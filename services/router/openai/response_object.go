package openai

import (
	"encoding/json"
	"net/http"
	"time"
)

// responseObject is a response, whole or as far as it is.
type responseObject struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`   // Unix time, seconds
	CompletedAt        *int64            `json:"completed_at"` // likewise
	Status             string            `json:"status"`
	Background         bool              `json:"background"`
	Error              *responseError    `json:"error"`
	Incomplete         *incomplete       `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	MaxOutputTokens    *int64            `json:"max_output_tokens"`
	MaxToolCalls       *int64            `json:"max_tool_calls"`
	Metadata           map[string]string `json:"metadata"`
	Model              string            `json:"model"`
	Output             []outputItem      `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Reasoning          reasoning         `json:"reasoning"`
	ServiceTier        string            `json:"service_tier"`
	Store              bool              `json:"store"`
	Fingerprint        string            `json:"system_fingerprint,omitempty"`
	Temperature        *float32          `json:"temperature"` // null: the model's default
	Text               textConfig        `json:"text"`
	ToolChoice         json.RawMessage   `json:"tool_choice"`
	Tools              []json.RawMessage `json:"tools"`
	TopLogprobs        int64             `json:"top_logprobs"`
	TopP               *float32          `json:"top_p"` // null: the model's default
	Truncation         string            `json:"truncation"`
	Usage              *responseUsage    `json:"usage"`
	Programs           accessPrograms    `json:"access_programs"`
	// Timing and Route come with the end of a response whose request asked for them.
	Timing map[string]float64 `json:"timing_ms,omitempty"`
	Route  *route             `json:"route,omitempty"`
}

// Values of responseObject.Status and outputItem.Status.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

// reasoning is what was used of it: nothing.
type reasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

type textConfig struct {
	Format    json.RawMessage `json:"format"`
	Verbosity *string         `json:"verbosity,omitempty"`
}

// accessPrograms are OpenAI's. Here there is only the standard.
type accessPrograms struct {
	Cyber string `json:"cyber"`
}

type responseUsage struct {
	Input         uint32        `json:"input_tokens"`
	InputDetails  inputDetails  `json:"input_tokens_details"`
	Output        uint32        `json:"output_tokens"`
	OutputDetails outputDetails `json:"output_tokens_details"`
	Total         uint32        `json:"total_tokens"`
}

// inputDetails count no writes to the cache: nobody pays for them here.
type inputDetails struct {
	promptDetails
	CacheWrite uint32 `json:"cache_write_tokens"`
}

type outputDetails struct {
	Reasoning uint32 `json:"reasoning_tokens"`
}

// outputItem is a message, or a call of a function.
type outputItem struct {
	ID        string        `json:"id"`
	Type      string        `json:"type"`
	Status    string        `json:"status"`
	Role      string        `json:"role,omitempty"`    // of a message
	Content   *[]outputText `json:"content,omitempty"` // likewise
	CallID    string        `json:"call_id,omitempty"` // of a call, which outputs of functions name
	Name      string        `json:"name,omitempty"`
	Arguments *string       `json:"arguments,omitempty"`
}

// Values of outputItem.Type.
const (
	typeMessage = "message"
	typeCall    = "function_call"
)

// outputText is a part of a message.
type outputText struct {
	Type        string      `json:"type"`
	Text        string      `json:"text"`
	Annotations []struct{}  `json:"annotations"`
	Logprobs    []chatToken `json:"logprobs"`
}

// anyText is the format of a text of any form.
var anyText = json.RawMessage(`{"type":"text"}`)

// outputTextOf is a part with a text.
func outputTextOf(text string, likelihoods []chatToken) outputText {
	return outputText{Type: "output_text", Text: text, Annotations: []struct{}{}, Logprobs: logprobsOf(likelihoods)}
}

// logprobsOf are log probabilities, never null.
func logprobsOf(tokens []chatToken) []chatToken {
	if tokens == nil {
		return []chatToken{}
	}
	return tokens
}

// ended is the status of an answer that has ended.
func (a *assembly) ended() string {
	if a.answers[0].finished == "length" {
		return statusIncomplete
	}
	return statusCompleted
}

// response is the response, without its output.
func (a *assembly) response(status string) *responseObject {
	r := a.parsed.response
	out := &responseObject{
		ID: "resp_" + a.exchange.id, Object: "response", CreatedAt: a.created, Status: status, Model: a.model, Fingerprint: a.fingerprint,
		Instructions: r.instructions, MaxOutputTokens: r.most, MaxToolCalls: r.toolCalls, Metadata: r.metadata,
		Output: []outputItem{}, ParallelToolCalls: r.parallel, ServiceTier: r.tier, Temperature: r.temperature, TopP: r.topP,
		Text: textConfig{Format: r.format, Verbosity: r.verbosity}, ToolChoice: r.choice, Tools: r.tools,
		TopLogprobs: r.top, Truncation: r.truncation, Programs: accessPrograms{Cyber: "standard"},
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if out.ToolChoice == nil {
		out.ToolChoice = json.RawMessage(`"auto"`)
	}
	if out.Tools == nil {
		out.Tools = []json.RawMessage{}
	}
	if out.Text.Format == nil {
		out.Text.Format = anyText
	}
	return out
}

// wholeResponse is a response that has ended.
func (a *assembly) wholeResponse(items []outputItem) *responseObject {
	status := a.ended()
	out := a.response(status)
	out.Output, out.Usage = items, a.responseUsage()
	if status == statusIncomplete {
		out.Incomplete = &incomplete{Reason: "max_output_tokens"}
	} else {
		out.CompletedAt = new(time.Now().Unix())
	}
	out.Timing, out.Route = a.answers[0].timing, a.answers[0].route
	return out
}

// responseUsage counts the tokens so far.
func (a *assembly) responseUsage() *responseUsage {
	u := a.usage()
	return &responseUsage{Input: u.Prompt, InputDetails: inputDetails{promptDetails: *u.Details}, Output: u.Completion, Total: u.Total}
}

// failedResponse is a response that failed when its stream had begun, with the items so far.
// OpenAI's codes are few.
func (a *assembly) failedResponse(f *Failure, items []outputItem) *responseObject {
	out := a.response(statusFailed)
	out.Output, out.Usage = items, a.responseUsage()
	out.Error = &responseError{Code: "server_error", Message: f.Message}
	if f.Status == http.StatusTooManyRequests {
		out.Error.Code = "rate_limit_exceeded"
	}
	return out
}
