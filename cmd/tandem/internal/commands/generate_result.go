package commands

import (
	"encoding/json"
	"math"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// tokenJSON is the line of one token.
type tokenJSON struct {
	Offset   uint64        `json:"offset"`
	TokenID  uint32        `json:"token_id"`
	Text     string        `json:"text"`
	Logprobs *logprobsJSON `json:"logprobs,omitempty"`
}

// resultJSON is the last line. All keys are there however the request ended, but
// for error, which only an end that is not well has.
type resultJSON struct {
	FinishReason string     `json:"finish_reason"`
	Text         string     `json:"text"`
	TokenIDs     []uint32   `json:"token_ids"`
	Usage        usageJSON  `json:"usage"`
	Route        routeJSON  `json:"route"`
	TimingMs     timingJSON `json:"timing_ms"`
	RequestID    string     `json:"request_id"`
	// Secret is what 'explain --secret' wants; "" if the request was not accepted.
	Secret string `json:"secret"`
	Model  string `json:"model"`
	Seed   uint64 `json:"seed"`
	Stop   string `json:"stop"`
	// SystemFingerprint names the weights and arithmetic that the tokens come from.
	SystemFingerprint string     `json:"system_fingerprint"`
	Error             *errorJSON `json:"error,omitempty"`
}

type usageJSON struct {
	PromptTokens     uint32 `json:"prompt_tokens"`
	CachedTokens     uint32 `json:"cached_tokens"`
	CompletionTokens uint32 `json:"completion_tokens"`
	// Of speculative decoding, on the worker that ended the request.
	DraftTokens         uint32 `json:"draft_tokens,omitempty"`
	AcceptedDraftTokens uint32 `json:"accepted_draft_tokens,omitempty"`
}

type routeJSON struct {
	Mode         string `json:"mode"`
	Prefill      string `json:"prefill"`
	Decode       string `json:"decode"`
	Reason       string `json:"reason"`
	Retries      uint32 `json:"retries"`
	Hedged       bool   `json:"hedged"`
	Reproducible bool   `json:"reproducible"`
	// Transport is what the KV went over: "tcp", "unix", "shm" or "device"; "": none went, or the
	// request ended before that was known.
	Transport string `json:"transport"`
}

// workers are those that served the request, such as "prefill-1 to decode-1".
func (r *routeJSON) workers() string {
	if r.Prefill == "" || r.Prefill == r.Decode {
		return r.Decode
	}
	return r.Prefill + " to " + r.Decode
}

// timingJSON is where the time went, in milliseconds. The stages, by the names and with
// the values that explain, budget, metrics and spans have, and other add up to total.
type timingJSON struct {
	Queue           float64 `json:"queue"`
	Tokenize        float64 `json:"tokenize"`
	Retried         float64 `json:"retried"`
	Decide          float64 `json:"decide"`
	Reserve         float64 `json:"reserve"`
	Prefill         float64 `json:"prefill"`
	Ttft            float64 `json:"ttft"`
	SecondToken     float64 `json:"second_token"`
	TransferExposed float64 `json:"transfer_exposed"`
	Decode          float64 `json:"decode"`
	Tpot            float64 `json:"tpot"`
	Other           float64 `json:"other"`
	Total           float64 `json:"total"`
	// Detail says what the stages consist of; nothing in it is added to them.
	Detail timingDetailJSON `json:"detail"`
}

type timingDetailJSON struct {
	PrefillQueue   float64 `json:"prefill_queue"`
	PrefillCompute float64 `json:"prefill_compute"`
	DecodeCompute  float64 `json:"decode_compute"`
	Transfer       float64 `json:"transfer"`
	// TransferTail is the end of transfer, from when the last layer was computed.
	TransferTail float64 `json:"transfer_tail"`
	// Fetch is a part of prefill: getting KV from a block store.
	Fetch float64 `json:"fetch"`
	// TransferBytes is a number of bytes, not a time.
	TransferBytes uint64 `json:"transfer_bytes"`
}

// errorJSON is a gRPC status with the details that programs act on.
type errorJSON struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
	// RetryAfterMs is 0 where nothing says that another try would help.
	RetryAfterMs float64 `json:"retry_after_ms"`
}

func timingOf(t *inferencev1.Timings) timingJSON {
	other := t.GetTotalNs()
	for _, took := range api.StagesOf(t) {
		other -= took.Nanoseconds()
	}
	return timingJSON{
		Queue:           milliseconds(t.GetQueueNs()),
		Tokenize:        milliseconds(t.GetTokenizeNs()),
		Retried:         milliseconds(t.GetRetriedNs()),
		Decide:          milliseconds(t.GetDecideNs()),
		Reserve:         milliseconds(t.GetReserveNs()),
		Prefill:         milliseconds(t.GetPrefillNs()),
		Ttft:            milliseconds(t.GetTtftNs()),
		SecondToken:     milliseconds(t.GetSecondTokenNs()),
		TransferExposed: milliseconds(t.GetTransferExposedNs()),
		Decode:          milliseconds(t.GetDecodeNs()),
		Tpot:            milliseconds(t.GetTpotNs()),
		Other:           milliseconds(other),
		Total:           milliseconds(t.GetTotalNs()),
		Detail: timingDetailJSON{
			PrefillQueue:   milliseconds(t.GetPrefillQueueNs()),
			PrefillCompute: milliseconds(t.GetPrefillComputeNs()),
			DecodeCompute:  milliseconds(t.GetDecodeComputeNs()),
			Transfer:       milliseconds(t.GetTransferNs()),
			TransferTail:   milliseconds(t.GetTransferTailNs()),
			Fetch:          milliseconds(t.GetFetchNs()),
			TransferBytes:  t.GetTransferBytes(),
		},
	}
}

// errorOf is an error as programs read it; message is the line that people get.
func errorOf(err error, message string) *errorJSON {
	e := &errorJSON{Code: rpc.CodeName(statusOf(err).Code()), Reason: rpc.Reason(err), Message: message, Field: rpc.Field(err)}
	if wait, ok := rpc.RetryAfter(err); ok {
		e.RetryAfterMs = milliseconds(wait)
	}
	return e
}

// modeName is a mode as flags spell it; "" if none is set.
func modeName(m inferencev1.Mode) string {
	if m == inferencev1.Mode_MODE_UNSPECIFIED {
		return ""
	}
	return api.Name(m)
}

// logprobsJSON says how likely the token of its line was.
type logprobsJSON struct {
	Logprob logprobJSON      `json:"logprob"`
	Top     []topLogprobJSON `json:"top"`
}

// topLogprobJSON is one of the likeliest tokens. Bytes of its text that are no
// UTF-8 are U+FFFD.
type topLogprobJSON struct {
	TokenID uint32      `json:"token_id"`
	Text    string      `json:"text"`
	Logprob logprobJSON `json:"logprob"`
}

// logprobJSON is a natural logarithm. JSON has no minus infinity: impossible is
// unlikely.
type logprobJSON float32

// impossible is what OpenAI's API says of tokens that are too unlikely to tell.
const impossible = -9999

// MarshalJSON implements json.Marshaler.
func (l logprobJSON) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(l), -1) {
		l = impossible
	}
	return json.Marshal(float32(l))
}

func logprobsLine(l *inferencev1.TokenLogprobs) *logprobsJSON {
	if l == nil {
		return nil
	}
	out := &logprobsJSON{Logprob: logprobJSON(l.GetLogprob()), Top: []topLogprobJSON{}}
	for _, t := range l.GetTop() {
		out.Top = append(out.Top, topLogprobJSON{TokenID: t.GetTokenId(), Text: string(t.GetText()), Logprob: logprobJSON(t.GetLogprob())})
	}
	return out
}
