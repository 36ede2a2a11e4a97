package router

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Result is what was measured. Its JSON is public.
type Result struct {
	Workers      int    `json:"workers"`
	Streams      int    `json:"streams"`
	Connections  int    `json:"connections"`
	PrefixBlocks int    `json:"prefix_blocks"`
	API          string `json:"api"` // grpc or openai
	// TLS: connections were encrypted.
	TLS bool `json:"tls"`
	// Auth: clients sent an API key, whose tenant had limits.
	Auth bool `json:"auth"`
	// Tokens in an answer and PromptTokens in its prompt.
	Tokens       int `json:"tokens"`
	PromptTokens int `json:"prompt_tokens"`

	// A decision of the routing core, with a prompt of 2048 tokens; HashUs is the time to hash
	// its blocks, which is not in it.
	DecisionsPerS float64 `json:"decisions_per_s"`
	DecisionUsP50 float64 `json:"decision_us_p50"`
	DecisionUsP99 float64 `json:"decision_us_p99"`
	HashUsP50     float64 `json:"hash_us_p50"`
	// ReportUs is what the routing core takes for a worker's load report, on average.
	ReportUs float64 `json:"report_us"`

	// IndexMs is how long the routing core takes for the prefix caches of all workers when it has
	// just begun, and IndexUsMax the longest that a decision waits for a part of that.
	IndexMs    float64 `json:"index_ms"`
	IndexUsMax float64 `json:"index_us_max"`

	// The relay of a router process. Tokens are those that clients got, and CPU time is the
	// router's alone.
	TokensPerS        float64 `json:"tokens_per_s"`
	PlannedTokensPerS float64 `json:"planned_tokens_per_s"`
	TokensPerCPUS     float64 `json:"tokens_per_cpu_s"`
	// CPUMsPerRequest is the same for a request with all of its Tokens.
	CPUMsPerRequest float64 `json:"cpu_ms_per_request"`
	RouterCPUs      float64 `json:"router_cpus"`
	ClientCPUs      float64 `json:"client_cpus"` // of clients and workers together
	RequestsPerS    float64 `json:"requests_per_s"`
	// AllocationsPerToken are the router's, those of requests that began and ended included.
	AllocationsPerToken float64 `json:"allocations_per_token"`
	// Added is what passed from where a worker sent until the client got it: the network of
	// this machine, twice, and the router. To the first token it includes the way of the
	// request, and of the reservation; the times that workers had it are not in it.
	AddedTTFTMsP50  float64 `json:"added_ttft_ms_p50"`
	AddedTTFTMsP99  float64 `json:"added_ttft_ms_p99"`
	AddedTokenUsP50 float64 `json:"added_token_us_p50"`
	AddedTokenUsP99 float64 `json:"added_token_us_p99"`
	RSSMBytes       float64 `json:"rss_mbytes"` // 10^6 bytes, of the router's process

	Seconds float64 `json:"seconds"`
	Valid   bool    `json:"valid"`
	Reason  string  `json:"reason,omitempty"`
}

// judge says whether the streams kept their pace.
func (r *Result) judge() {
	r.Valid = r.TokensPerS >= 0.9*r.PlannedTokensPerS
	if !r.Valid {
		r.Reason = fmt.Sprintf("only %.0f of %.0f tokens a second came: this machine is too small or too busy for the pace, so that times are those of an overload; pass fewer --streams or a longer --itl", r.TokensPerS, r.PlannedTokensPerS)
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// mallocs is how many objects the process that serves metrics at address has allocated.
func mallocs(ctx context.Context, address string) (float64, error) {
	const name = "go_memstats_mallocs_total "
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("metrics of the router: %w", err)
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, fmt.Errorf("metrics of the router: %w", err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, is := strings.CutPrefix(lines.Text(), name); is {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("metrics of the router: they do not have %s", strings.TrimSpace(name))
}
