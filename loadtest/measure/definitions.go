package measure

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Definition says what a figure is and what other tools call it. Reports print it,
// since equal names do not mean equal figures.
type Definition struct {
	// Name is the figure's key in the JSON.
	Name string `json:"name"`
	// Text is what it is here.
	Text string `json:"definition"`
	// VLLM is `vllm bench serve`, AIPerf NVIDIA's AIPerf and genai-perf before it,
	// SGLang `sglang.bench_serving`, MLPerf MLPerf Inference's LoadGen, server
	// scenario: the name there and what differs. Empty: it has no such figure.
	VLLM   string `json:"vllm"`
	AIPerf string `json:"aiperf"`
	SGLang string `json:"sglang"`
	MLPerf string `json:"mlperf"`
}

// Definitions of the figures, in the order of reports. What is said of other tools
// was read in vllm/benchmarks/serve.py and lib/endpoint_request_func.py, AIPerf's
// docs/metrics-reference.md, sglang's bench_serving.py and its guide, and LoadGen's
// loadgen.cc and results.cc, all of 2025 and 2026.
func Definitions() []Definition {
	return []Definition{
		{
			Name:   "ttft_ms",
			Text:   "From when the request was due to the first message with a token. It includes the time in which the generator was late or waited for a connection.",
			VLLM:   "TTFT; from the send, to the first chunk that has a choice, which for chats may be the role without a token. Waiting for --max-concurrency is left out",
			AIPerf: "time_to_first_token; from the send, to the first chunk with content",
			SGLang: "TTFT; from the send, to the first chunk with text",
			MLPerf: "TTFT; from the scheduled time, as here",
		},
		{
			Name:   "ttft_sent_ms",
			Text:   "From when the request was handed to the transport to the first message with a token. The difference to ttft_ms is the client's lateness, which tools that count from the send do not see.",
			VLLM:   "TTFT",
			AIPerf: "time_to_first_token",
			SGLang: "TTFT",
		},
		{
			Name:   "second_token_ms",
			Text:   "From the first to the second token; 0 if one message brought both. If prefill and decode run on separate workers, the KV transfer between them shows here.",
			AIPerf: "time_to_second_token; from the first to the second chunk, however many tokens each has",
		},
		{
			Name:   "itl_ms",
			Text:   "Each gap between consecutive tokens, over all requests. If a message brings several tokens, the first has the gap and the others have 0.",
			VLLM:   "no such figure: its ITL is itl_message_ms here",
			AIPerf: "no such figure: its inter_token_latency is tpot_ms here",
			SGLang: "ITL; the native backend shares a gap out evenly among the tokens of its chunk, so that bursts do not show; the OpenAI backends count chunks",
		},
		{
			Name:   "itl_message_ms",
			Text:   "Each gap between consecutive messages with tokens, over all requests.",
			VLLM:   "ITL; chunks that carry no text count too",
			AIPerf: "inter_chunk_latency",
			SGLang: "ITL of the OpenAI backends",
		},
		{
			Name:   "tpot_ms",
			Text:   "(last token - first token) / (tokens - 1), one figure for each request of at least two tokens; tokens as the server counts them.",
			VLLM:   "TPOT; tokens as the server counts them, else as the client's tokenizer does",
			AIPerf: "inter_token_latency; tokens counted by the client's tokenizer",
			SGLang: "TPOT; to the end of the answer, not to its last token",
			MLPerf: "TPOT; the same formula",
		},
		{
			Name:   "e2e_ms",
			Text:   "From when the request was due to its last token.",
			VLLM:   "E2EL; from the send",
			AIPerf: "request_latency; from the send",
			SGLang: "E2E latency; from the send, to the end of the answer",
			MLPerf: "latency; from the scheduled time, as here",
		},
		{
			Name:   "e2e_sent_ms",
			Text:   "From when the request was handed to the transport to its last token.",
			VLLM:   "E2EL",
			AIPerf: "request_latency",
			SGLang: "E2E latency",
		},
		{
			Name:   "normalized_e2e_ms",
			Text:   "e2e_ms / output tokens, one figure for each request (the normalised latency of Orca and vLLM's papers).",
			AIPerf: "the inverse of e2e_output_token_throughput",
		},
		{
			Name:   "dispatch_delay_ms",
			Text:   "From when the request was due to when the generator began to send it, over all requests. It is the generator's own lateness.",
			MLPerf: "issue delay, in its trace only",
		},
		{
			Name: "admission_delay_ms",
			Text: "From the send to when the server accepted the request.",
		},
		{
			Name:   "percentiles",
			Text:   "The smallest value that this share of the samples does not exceed, from an HDR histogram with microseconds and three digits. The samples come from requests that were due in the window, however they ended; for tpot_ms and e2e_ms, from completed ones. ci: the 95% confidence interval from order statistics, for the number of independent samples that the requests are worth; ~ if those are too few for one. A percentile is n/a if there are fewer samples than such an interval takes: " + SamplesNeeded() + ".",
			VLLM:   "interpolated between samples (numpy.percentile), of any number of samples, without interval",
			AIPerf: "of any number of samples",
			SGLang: "interpolated between samples (numpy.percentile), of any number of samples, without interval",
			MLPerf: "a sample's own value; early stopping asks for enough queries to be 99% sure, and takes them for independent",
		},
		{
			Name:   "offered_rps",
			Text:   "Requests that were due in the window, per second. The window begins after the warm-up and ends when sending does: after --duration, or with a trace that ends before when its last request was due.",
			VLLM:   "--request-rate, as asked for; the arrival times are stretched to fit it",
			AIPerf: "--request-rate, as asked for",
			SGLang: "--request-rate, as asked for",
			MLPerf: "scheduled samples per second",
		},
		{
			Name:   "completed_rps",
			Text:   "Requests that were completed in the window, per second, whenever they were due.",
			VLLM:   "request throughput; all completed, over the time to the last one's end",
			AIPerf: "request_throughput; all completed, over the time to the last one's end",
			SGLang: "request throughput; all completed, over the time to the last one's end",
			MLPerf: "completed samples per second; all, over the time to the last one's end",
		},
		{
			Name:   "output_tokens_per_s",
			Text:   "Tokens that arrived in the window, per second, of any request.",
			VLLM:   "output token throughput; of completed requests, over the time to the last one's end",
			AIPerf: "output_token_throughput; of completed requests, over the time to the last one's end",
			SGLang: "output token throughput; of completed requests, over the time to the last one's end",
			MLPerf: "completed tokens per second; over the time to the last one's end",
		},
		{
			Name:   "goodput_rps",
			Text:   "Requests completed in the window that kept every bound of the SLO, per second. Each request counts by its own latencies (itl: its longest gap), whatever percentile the terms name.",
			VLLM:   "request goodput (--goodput ttft, tpot, e2el); from the send",
			AIPerf: "goodput (--goodput); from the send",
		},
		{
			Name: "slo_attainment",
			Text: "The share of requests that kept every bound of the SLO, of those due in the window, of those admitted, and of those completed. Requests that were refused, failed or timed out did not keep it.",
		},
		{
			Name:   "objectives",
			Text:   "Each term of the SLO: the percentile over requests against its bound. Requests that were refused, failed or timed out count as infinite. So do requests that had waited longer than the bound at the end of the run. Requests that were cut off earlier are left out; if they could decide whether the bound is kept, there is no figure. confirmed: the whole 95% confidence interval is within the bound.",
			MLPerf: "early stopping, with 99% confidence; queries that fail are not counted apart",
		},
		{
			Name:   "verdict",
			Text:   "From the slope of the backlog (requests due but not ended) over the window, with a 95% confidence interval. STABLE: it did not grow. BACKLOGGED: it grew, but not steadily. OVERLOADED: it grew steadily, or more than 1% of the requests were not served, or too many had not ended at the end of the run: more than half of those that had as long as the first ten took, or more than 1% of those that had twice as long. NONE: the client was the bottleneck, or the run was too short.",
			MLPerf: "a run is valid or not",
		},
	}
}

// SamplesNeeded says how many samples each percentile takes.
func SamplesNeeded() string {
	each := make([]string, len(percentiles))
	for i, p := range percentiles {
		each[i] = fmt.Sprintf("%d for %s", stats.QuantileNeeds(p.q), strings.Replace(p.name, "999", "99.9", 1))
	}
	return strings.Join(each, ", ")
}
