package commands

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// explainJSON is what `explain --json` prints.
type explainJSON struct {
	RequestID string         `json:"request_id"`
	Arrived   string         `json:"arrived"`
	Status    string         `json:"status"`
	Message   string         `json:"message"` // of the status
	Decisions []decisionJSON `json:"decisions"`
	// TimingMs is null if the request has not ended well.
	TimingMs *timingJSON `json:"timing_ms"`
	// Rank is 1 for the slowest of Ranked requests by RankedBy, ttft or e2e; only with
	// --slowest.
	Rank     uint32 `json:"rank,omitempty"`
	Ranked   uint32 `json:"ranked,omitempty"`
	RankedBy string `json:"ranked_by,omitempty"`
}

// decisionJSON is one attempt.
type decisionJSON struct {
	Mode    string `json:"mode"`
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	Reason  string `json:"reason"`
	Failure string `json:"failure"`
	// Hedge: it is a hedged attempt beside the one before, whose first token was late. Lost: the other
	// of the two had its first token before.
	Hedge bool `json:"hedge"`
	Lost  bool `json:"lost"`
	// Source is the block store that the prefill worker was told of, with what it
	// announced of the prompt; "" and 0: none.
	Source       string `json:"source"`
	SourceBlocks uint32 `json:"source_blocks"`
	// Transport is what the KV went over: "tcp", "unix", "shm" or "device"; "": none went.
	Transport string `json:"transport"`
	// TtftMs and TpotMs were predicted; 0: the worker had measured nothing, or nothing that was
	// believed.
	TtftMs float64 `json:"predicted_ttft_ms"`
	TpotMs float64 `json:"predicted_tpot_ms"`

	Candidates []candidateJSON `json:"candidates"`
	Others     []othersJSON    `json:"others"`
}

// candidateJSON is one worker with the terms of its cost.
type candidateJSON struct {
	Worker       string  `json:"worker"`
	Role         string  `json:"role"`
	Excluded     string  `json:"excluded"`
	QueueMs      float64 `json:"queue_ms"`
	PrefillMs    float64 `json:"prefill_ms"`
	TpotMs       float64 `json:"tpot_ms"`
	CachedTokens uint32  `json:"cached_tokens"`
	FetchTokens  uint32  `json:"fetch_tokens"`
	InFlight     uint32  `json:"in_flight"`
	CostMs       float64 `json:"cost_ms"`
	// TransferMs is from the first token until the KV has arrived, by the speed that is known.
	TransferMs             float64 `json:"transfer_ms"`
	TransferBytesPerSecond float64 `json:"transfer_bytes_per_second"`
}

// othersJSON counts workers that are not among the candidates.
type othersJSON struct {
	Role    string `json:"role"`
	Reason  string `json:"reason"`
	Workers uint32 `json:"workers"`
}

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain REQUEST-ID | --slowest PERCENTILE",
		Short: "Explain how a request was routed, and where its time went",
		Long: `Prints the router's record of a request: the stages of its latency, and the workers that
the router considered. Of each role it shows at most eight, with each term of the worker's
cost, and counts the others. The router keeps the last few thousand requests.

The beginning of an id is enough, if only one request has it. The id in the body of an
HTTP answer works too: cmpl-ID, chatcmpl-ID or resp_ID. Of several answers to one prompt
the second is ID/1, the third ID/2.

COST MS is what the policy slo compares. For a prefill worker it is QUEUE MS, PREFILL MS
and the time by which its KV arrives later than the decode worker's row assumes. For a
decode worker it is the time to reserve blocks, TPOT MS for each token of the answer, at
most 64 of them, and the delay that the tokens cause to others that decode there; if that
worker would compute the prompt too, it has QUEUE MS and PREFILL MS instead of the time to
reserve blocks. Where one worker does all in mode auto, only the chosen worker's row has
the prompt in it, and the delay that it causes to the sequences which decode there. So the
costs of the other decode workers may be lower.

The cheapest worker is not always chosen. Costs count as equal if they differ by at most a
tenth of the cheapest worker's time to the first token and half a millisecond: of such
workers the one with the fewest requests IN FLIGHT is chosen. Workers that are predicted
to miss the request's objective come last.

Operators see every request. They reach the router at its --control address, which is
on the router's own host unless it is set otherwise.

Everybody else sees only requests of their own, at the address where they sent them:
pass it as --addr, and the request's secret as --secret. The answer came with both the
id and the secret: see the last line of 'tandem generate --json' or, over HTTP, the
headers X-Request-Id and X-Tandem-Secret.

--slowest explains the request at a percentile of those that ended well: 1 request of
100 was slower than the one at p99; max is the slowest. --by says which latency counts:
ttft, the time to the first token, or e2e, that of the whole request.`,
		Example: `  tandem explain 4f1c2a90d3
  tandem explain 4f1c2a90d3 --secret 0f9be2… --addr router:7070
  tandem explain --slowest p99
  tandem explain --slowest max --by e2e`,
	}
	router := addControl(cmd)
	addr := cmd.Flags().String("addr", defaultAddr, "gRPC address that the request was sent to; only with --secret: operators pass --control")
	secret := cmd.Flags().String("secret", "", "secret that came with the answer: shows the request to who made it, at --addr")
	asJSON := addJSON(cmd, "print one JSON object: request_id, arrived, status, message, decisions, timing_ms; with --slowest also rank, ranked, ranked_by")
	slowest := cmd.Flags().String("slowest", "", "explain the request at this percentile instead, such as p99, p99.9 or max")
	by := cmd.Flags().String("by", "ttft", "latency that --slowest compares: ttft or e2e")
	oneOf(cmd, "by", "ttft", "e2e")
	onlyOnCommandLine(cmd, "slowest", "by", "secret")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *slowest == "" {
			return exactly("the REQUEST-ID that 'generate --json' prints, and that HTTP answers and logs carry, or --slowest p99")(cmd, args)
		}
		return exactly()(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := explainRequest(cmd, args, *slowest, *by)
		if err != nil {
			return err
		}
		if onCommandLine(cmd, "addr") && !cmd.Flags().Changed("secret") {
			return usageError(cmd, "--addr needs --secret too, the request's secret that came with the answer; operators pass --control instead")
		}
		response, err := explainByID(request, func(request *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
			if cmd.Flags().Changed("secret") {
				return explainOwn(cmd, &router.access, *addr, request, *secret)
			}
			return ask(router, controlv1.NewControlClient, controlv1.ControlClient.Explain, request)
		})
		if err != nil {
			return err
		}
		explained := explanationOf(response)
		if *slowest != "" {
			explained.RankedBy = *by
		}
		return show(cmd, *asJSON, explained, printExplanation)
	}
	return cmd
}

// idInBody is what stands before the id of a request in the body of its answer.
var idInBody = regexp.MustCompile("^(cmpl-|chatcmpl-|resp_)")

// explainByID asks for a request by its id or, if none is called that, by the id that the
// body of an HTTP answer has: there a word for the kind of answer stands before it.
func explainByID(request *controlv1.ExplainRequest, ask func(*controlv1.ExplainRequest) (*controlv1.ExplainResponse, error)) (*controlv1.ExplainResponse, error) {
	response, err := ask(request)
	id := idInBody.ReplaceAllString(request.GetRequestId(), "")
	if err == nil || id == "" || id == request.GetRequestId() || statusOf(err).Code() != codes.NotFound {
		return response, err
	}
	if response, again := ask(&controlv1.ExplainRequest{RequestId: id}); statusOf(again).Code() != codes.NotFound {
		return response, again
	}
	return nil, err // which has the id as it was typed
}

// explainOwn asks as who made the request.
func explainOwn(cmd *cobra.Command, a *access, addr string, request *controlv1.ExplainRequest, secret string) (*controlv1.ExplainResponse, error) {
	if request.GetSlowest() != nil {
		return nil, usageError(cmd, "--secret is for one request, and --slowest looks at all of them: leave one of them out")
	}
	if onCommandLine(cmd, "control") {
		return nil, usageError(cmd, "--control is for operators, who need no --secret: leave one of them out")
	}
	as, err := a.open(cmd)
	if err != nil {
		return nil, err
	}
	conn, err := dial(addr, as)
	if err != nil {
		return nil, usageError(cmd, "--addr: "+err.Error())
	}
	defer conn.Close()
	own := &controlv1.ExplainOwnRequest{RequestId: request.GetRequestId(), Secret: secret}
	response, err := controlv1.NewRequestsClient(conn).Explain(cmd.Context(), own)
	return response, routerFailure(err, addr, false)
}

func explainRequest(cmd *cobra.Command, args []string, slowest, by string) (*controlv1.ExplainRequest, error) {
	if slowest == "" {
		if cmd.Flags().Changed("by") {
			return nil, usageError(cmd, "--by says what --slowest compares: pass --slowest p99 too")
		}
		return &controlv1.ExplainRequest{RequestId: args[0]}, nil
	}
	percentile, err := parsePercentile(slowest)
	if err != nil {
		return nil, usageError(cmd, "--slowest: "+err.Error())
	}
	rank := &controlv1.Slowest{Percentile: percentile}
	switch by {
	case "ttft":
		rank.By = controlv1.RankBy_RANK_BY_TTFT
	case "e2e":
		rank.By = controlv1.RankBy_RANK_BY_E2E
	default:
		return nil, usageError(cmd, fmt.Sprintf("--by: %q is neither ttft nor e2e", by))
	}
	return &controlv1.ExplainRequest{Slowest: rank}, nil
}

// parsePercentile reads "p99", "99.9" or "max".
func parsePercentile(text string) (float64, error) {
	if text == "max" {
		return 100, nil
	}
	percentile, err := strconv.ParseFloat(strings.TrimPrefix(text, "p"), 64)
	if err != nil || !(percentile > 0 && percentile <= 100) { // so that NaN is refused too
		return 0, fmt.Errorf("%q is not a percentile: write p50, p99, p99.9 or max", text)
	}
	return percentile, nil
}

func explanationOf(response *controlv1.ExplainResponse) explainJSON {
	explained := explainJSON{
		RequestID: response.GetRequestId(),
		Arrived:   response.GetArrived().AsTime().Format(time.RFC3339Nano),
		Status:    response.GetStatus(),
		Message:   response.GetMessage(),
		Decisions: []decisionJSON{},
		Rank:      response.GetRank(),
		Ranked:    response.GetRanked(),
	}
	for _, d := range response.GetDecisions() {
		decision := decisionJSON{
			Mode: modeName(d.GetMode()), Prefill: d.GetPrefill(), Decode: d.GetDecode(),
			Reason: d.GetReason(), Failure: d.GetFailure(), Candidates: []candidateJSON{}, Others: []othersJSON{},
			Source: d.GetSource(), SourceBlocks: d.GetSourceBlocks(), Transport: d.GetTransport(),
			TtftMs: d.GetTtftMs(), TpotMs: d.GetTpotMs(), Hedge: d.GetHedge(), Lost: d.GetLost(),
		}
		for _, c := range d.GetCandidates() {
			decision.Candidates = append(decision.Candidates, candidateJSON{
				Worker: c.GetWorkerId(), Role: api.Name(c.GetRole()), Excluded: c.GetExcluded(),
				QueueMs: c.GetQueueMs(), PrefillMs: c.GetPrefillMs(), TpotMs: c.GetTpotMs(),
				CachedTokens: c.GetCachedTokens(), FetchTokens: c.GetFetchTokens(), InFlight: c.GetInFlight(), CostMs: c.GetCostMs(),
				TransferMs: c.GetTransferMs(), TransferBytesPerSecond: c.GetTransferBytesPerSecond(),
			})
		}
		for _, o := range d.GetOthers() {
			decision.Others = append(decision.Others, othersJSON{Role: api.Name(o.GetRole()), Reason: o.GetReason(), Workers: o.GetWorkers()})
		}
		explained.Decisions = append(explained.Decisions, decision)
	}
	if t := response.GetTimings(); t != nil {
		explained.TimingMs = new(timingOf(t))
	}
	return explained
}

func printExplanation(w io.Writer, e explainJSON) error {
	fmt.Fprintf(w, "request %s, arrived %s, %s", e.RequestID, e.Arrived, cmp.Or(e.Status, "still running"))
	if e.Message != "" {
		fmt.Fprintf(w, ": %s", e.Message)
	}
	fmt.Fprintln(w)
	if e.Rank > 0 {
		other := "--by e2e for the whole request"
		if e.RankedBy == "e2e" {
			other = "--by ttft for the first token"
		}
		fmt.Fprintf(w, "number %d of %d requests, slowest by %s first (%s)\n", e.Rank, e.Ranked, e.RankedBy, other)
	}
	for i, d := range e.Decisions {
		outcome := fmt.Sprintf("%s, prefill %s, decode %s", d.Mode, d.Prefill, d.Decode)
		switch {
		case d.Decode == "":
			outcome = "refused"
		case d.Prefill == "":
			outcome = fmt.Sprintf("%s, all on %s", d.Mode, d.Decode)
		}
		fmt.Fprintf(w, "\nattempt %d: %s: %s\n", i+1, outcome, d.Reason)
		var predicted []string
		if d.TtftMs > 0 {
			predicted = append(predicted, fmt.Sprintf("first token %.2f ms after the request came", d.TtftMs))
		}
		if d.TpotMs > 0 {
			predicted = append(predicted, fmt.Sprintf("tpot %.2f ms", d.TpotMs))
		}
		if len(predicted) > 0 {
			fmt.Fprintf(w, "predicted: %s\n", strings.Join(predicted, "; "))
		}
		if d.Failure != "" {
			fmt.Fprintf(w, "failed: %s\n", d.Failure)
		}
		if d.Lost {
			fmt.Fprintln(w, "cancelled: the other attempt had its first token before")
		}
		if d.Transport != "" {
			fmt.Fprintf(w, "KV went over %s\n", d.Transport)
		}
		if d.Source != "" {
			fmt.Fprintf(w, "block store %s had announced %s of the prompt; the router told %s\n", d.Source, counted(d.SourceBlocks, "block"), d.Prefill)
		}
		if len(d.Candidates) == 0 {
			continue
		}
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "WORKER\tROLE\tCOST MS\tQUEUE MS\tPREFILL MS\tTPOT MS\tTRANSFER MS\tCACHED\tTO FETCH\tIN FLIGHT\tEXCLUDED")
		for _, c := range d.Candidates {
			fmt.Fprintf(table, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t%d\t%d\t%s\n",
				c.Worker, c.Role, c.CostMs, c.QueueMs, c.PrefillMs, c.TpotMs, c.TransferMs, c.CachedTokens, c.FetchTokens, c.InFlight, c.Excluded)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, o := range d.Others {
			fmt.Fprintf(w, "and %s: %s\n", counted(o.Workers, o.Role+" worker"), o.Reason)
		}
	}
	if t := e.TimingMs; t != nil {
		retried := ""
		if t.Retried > 0 {
			retried = fmt.Sprintf("retried %.2f + ", t.Retried)
		}
		fmt.Fprintf(w, "\n%.2f ms = tokenize %.2f + %squeue %.2f + decide %.2f + reserve %.2f + prefill %.2f + transfer exposed %.2f + decode %.2f + other %.2f\n",
			t.Total, t.Tokenize, retried, t.Queue, t.Decide, t.Reserve, t.Prefill, t.TransferExposed, t.Decode, t.Other)
		if t.Detail.Fetch > 0 {
			fmt.Fprintf(w, "%.2f ms of prefill were spent on fetching KV from a block store\n", t.Detail.Fetch)
		}
		fmt.Fprintln(w, tokenTimes(*t))
	}
	return nil
}

// tokenTimes says when the tokens came. Tpot is the mean of all gaps between them, with
// that before the second token, which has the transfer in it.
func tokenTimes(t timingJSON) string {
	line := fmt.Sprintf("first token after %.2f ms", t.Ttft)
	if t.Tpot <= 0 {
		return line
	}
	return line + fmt.Sprintf(", second %.2f ms later; tpot %.2f ms", t.SecondToken, t.Tpot)
}
