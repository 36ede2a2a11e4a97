package commands

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/client"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func newGenerateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Continue a prompt",
		Long: `Sends a prompt to the router and prints the answer as it arrives. The prompt is used
byte for byte, from standard input too: a line break at its end is part of it.

Tokens are drawn with the model's own defaults (its generation_config.json), as over
HTTP, so that each run gives another answer. --temperature 0 always takes the likeliest
token; --seed repeats the draws of an earlier run.

With --json each line is a token, and the last line is the result: finish_reason,
text, token_ids, usage, route and timing_ms. The stages in timing_ms add up to its total.
A request that failed has a result with an error; a wrong command line (status 2) has none.
With --logprobs each token's line also has the natural logarithm of the token's
probability, before temperature, penalties and biases.

--json-object, --json-schema, --regex, --choice and --grammar hold the output to a form:
no token is drawn that it does not allow. An output that --max-tokens ends may be incomplete.

Ctrl-C or SIGTERM cancels the request; the exit status is then 130.`,
		Example: `  tandem generate --prompt "Once upon a time" --max-tokens 60
  printf 'Once upon a time' | tandem generate --temperature 0.8 --seed 7
  tandem generate --token-ids 1,2,3 --mode disaggregated --json
  tandem generate --prompt "Once" --repetition-penalty 1.2 --logit-bias 17=-100 --logprobs 3 --json
  tandem generate --prompt "Is the king good?" --choice yes,no
  tandem generate --prompt "The year was " --regex "1[0-9]{3}" --temperature 0
  tandem generate --prompt "The hero: " --json-object --max-tokens 200`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(cmd, fmt.Sprintf("tandem generate takes no argument %q, did you mean --prompt %q?", args[0], strings.Join(args, " ")))
			}
			return nil
		},
	}
	flags := new(generateFlags)
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out := bufio.NewWriter(cmd.OutOrStdout())
		g := &generation{flags: flags, out: out, lines: json.NewEncoder(out)}
		g.lines.SetEscapeHTML(false)
		g.result.TokenIDs = []uint32{}
		err := g.run(cmd)
		if err != nil {
			err = g.failure(err)
		}
		if wrong, is := errors.AsType[*exitError](err); is && wrong.status == exitUsage {
			return err // there was no request, and so there is no result
		}
		if endErr := g.end(cmd, err); err == nil {
			err = endErr
		}
		return err
	}
	return cmd
}

// generation is one request on its way.
type generation struct {
	flags  *generateFlags
	out    *bufio.Writer
	lines  *json.Encoder
	result resultJSON
	text   strings.Builder
	// held is the line of the last token, if text may still come that belongs to
	// it: the texts of all lines together are the text of the result.
	held *tokenJSON
	// accepted: the router was there and took the request.
	accepted bool
}

// run sends the request and prints tokens as they come. Its error is a status.
func (g *generation) run(cmd *cobra.Command) error {
	request, err := g.flags.request(cmd)
	if err != nil {
		return err
	}
	as, err := g.flags.open(cmd)
	if err != nil {
		return err
	}
	routers, err := dialRouters(g.flags.addr, as)
	if err != nil {
		return rpc.InvalidArgument("addr", err.Error())
	}
	defer func() { _ = routers.Close() }() // of connections that nobody waits for
	ctx := cmd.Context()
	if g.flags.timeout != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.flags.timeout)
		defer cancel()
	}
	if g.flags.requestID != "" {
		ctx = rpc.WithRequestID(ctx, g.flags.requestID)
	}
	return g.follow(ctx, routers, request)
}

func (g *generation) follow(ctx context.Context, routers *client.Client, request *inferencev1.GenerateRequest) error {
	for event, err := range routers.Events(ctx, request) {
		if err != nil {
			return err
		}
		if err := g.handle(event, request); err != nil {
			return err
		}
	}
	return nil
}

func (g *generation) handle(event *inferencev1.GenerateEvent, request *inferencev1.GenerateRequest) error {
	switch e := event.GetEvent().(type) {
	case *inferencev1.GenerateEvent_Accepted:
		g.accepted = true
		g.result.RequestID, g.result.Secret = e.Accepted.GetRequestId(), e.Accepted.GetSecret()
		g.result.Model = e.Accepted.GetModel()
		g.result.Seed, g.result.SystemFingerprint = e.Accepted.GetSeed(), e.Accepted.GetSystemFingerprint()
		g.result.Usage.PromptTokens = e.Accepted.GetPromptTokens()
		return nil
	case *inferencev1.GenerateEvent_Tokens:
		return g.tokens(event.GetOffset(), e.Tokens, request)
	case *inferencev1.GenerateEvent_Finished:
		g.finish(e.Finished)
		return g.more(e.Finished.GetText())
	}
	// An event of a later version of the protocol.
	return nil
}

// tokens takes new tokens and their text. The text of several goes to the line of
// the last one, with which it became certain.
func (g *generation) tokens(offset uint64, delta *inferencev1.TokenDelta, request *inferencev1.GenerateRequest) error {
	ids := delta.GetTokenIds()
	g.result.TokenIDs = append(g.result.TokenIDs, ids...)
	if !g.flags.json || len(ids) == 0 {
		return g.more(delta.GetText())
	}
	if err := g.release(); err != nil {
		return err
	}
	g.text.WriteString(delta.GetText())
	for i, id := range ids {
		line := &tokenJSON{Offset: offset + uint64(i), TokenID: id}
		if i < len(delta.GetLogprobs()) {
			line.Logprobs = logprobsLine(delta.GetLogprobs()[i])
		}
		if i == len(ids)-1 {
			line.Text = delta.GetText()
			if g.mayGrow(line, request) {
				g.held = line
				break
			}
		}
		if err := g.lines.Encode(line); err != nil {
			return g.printed(err)
		}
	}
	return g.printed(g.out.Flush())
}

// mayGrow reports whether text that the router holds back may turn out to belong
// to this token. It never does while more tokens come, except after one without
// text of its own or near a stop text; other lines go out at once.
func (g *generation) mayGrow(line *tokenJSON, request *inferencev1.GenerateRequest) bool {
	last := request.MaxTokens != nil && line.Offset+1 >= uint64(request.GetMaxTokens())
	return last || line.Text == "" || len(request.GetStop()) > 0
}

// more takes text without a token of its own.
func (g *generation) more(text string) error {
	g.text.WriteString(text)
	if g.flags.json {
		if g.held != nil {
			g.held.Text += text
		}
		return nil
	}
	if _, err := g.out.WriteString(text); err != nil {
		return g.printed(err)
	}
	return g.printed(g.out.Flush())
}

func (g *generation) release() error {
	if g.held == nil {
		return nil
	}
	line := g.held
	g.held = nil
	return g.printed(g.lines.Encode(line))
}

// printed makes an error of standard output a status.
func (g *generation) printed(err error) error {
	if err == nil {
		return nil
	}
	return rpc.Errorf(codes.Aborted, "STANDARD_OUTPUT", "write the result: %v", err)
}

func (g *generation) finish(f *inferencev1.Finished) {
	g.result.FinishReason = api.Name(f.GetReason())
	g.result.Stop = f.GetStop()
	g.result.Usage = usageJSON{
		PromptTokens:     f.GetUsage().GetPromptTokens(),
		CachedTokens:     f.GetUsage().GetCachedTokens(),
		CompletionTokens: f.GetUsage().GetCompletionTokens(),
		DraftTokens:      f.GetUsage().GetDraftTokens(), AcceptedDraftTokens: f.GetUsage().GetAcceptedDraftTokens(),
	}
	g.result.Route = routeJSON{
		Mode:         modeName(f.GetRoute().GetMode()),
		Prefill:      f.GetRoute().GetPrefill(),
		Decode:       f.GetRoute().GetDecode(),
		Reason:       f.GetRoute().GetReason(),
		Retries:      f.GetRoute().GetRetries(),
		Hedged:       f.GetRoute().GetHedged(),
		Reproducible: f.GetRoute().GetReproducible(),
		Transport:    f.GetRoute().GetTransport(),
	}
	g.result.TimingMs = timingOf(f.GetTimings())
}

// failure records an end that is not well, and says it in one line.
func (g *generation) failure(err error) error {
	line := g.flags.failure(err, g.accepted)
	if g.flags.timeout != 0 && statusOf(err).Code() == codes.DeadlineExceeded && rpc.Reason(err) == "" {
		line = fmt.Errorf("the request was not done within --timeout %s: pass a longer one", g.flags.timeout)
	}
	g.result.FinishReason = "error"
	if statusOf(err).Code() == codes.Canceled {
		g.result.FinishReason = "cancelled"
	}
	g.result.Error = errorOf(err, line.Error())
	g.result.Usage.CompletionTokens = uint32(len(g.result.TokenIDs))
	// Of a request that was not accepted nothing has come, the id neither.
	g.result.RequestID = cmp.Or(g.result.RequestID, g.flags.requestID)
	return line
}

// end prints what comes last: with --json the result, else a line break, and on a
// terminal what the request cost.
func (g *generation) end(cmd *cobra.Command, failed error) error {
	if !g.flags.json {
		if g.text.Len() > 0 {
			fmt.Fprintln(g.out)
		}
		if err := g.out.Flush(); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
		if failed == nil && isTerminal(cmd.ErrOrStderr()) {
			fmt.Fprintln(cmd.ErrOrStderr(), g.cost())
		}
		return nil
	}
	if err := g.release(); err != nil {
		return err
	}
	g.result.Text = g.text.String()
	if err := cmp.Or(g.lines.Encode(g.result), g.out.Flush()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (g *generation) cost() string {
	r := g.result
	ms := func(value float64) time.Duration {
		return time.Duration(value * float64(time.Millisecond)).Round(10 * time.Microsecond)
	}
	continued := ""
	switch lost := r.Route.Retries; {
	case lost == 1:
		continued = fmt.Sprintf("; continued on %s after a worker was lost", r.Route.Decode)
	case lost > 1:
		continued = fmt.Sprintf("; continued on %s after %d workers were lost", r.Route.Decode, lost)
	}
	return fmt.Sprintf("[%d+%d tokens, %s; first after %s, then %s each, %s in all; %s on %s%s]",
		r.Usage.PromptTokens, r.Usage.CompletionTokens, r.FinishReason, ms(r.TimingMs.Ttft), ms(r.TimingMs.Tpot),
		ms(r.TimingMs.Total), r.Route.Mode, r.Route.workers(), continued)
}
