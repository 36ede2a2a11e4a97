package commands

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// maxPromptBytes bounds what is read as a prompt: more than any context holds.
const maxPromptBytes = 16 << 20

type generateFlags struct {
	requestFlags
	prompt, tokenIDs, cacheSalt, requestID string
	logprobs, priority, minTokens          int64
	ignoreEOS, noSpecial                   bool
	timeout                                time.Duration
	form                                   formFlags
}

func (g *generateFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&g.prompt, "prompt", "", "text to continue (default: standard input, unless --token-ids is given)")
	fs.StringVar(&g.tokenIDs, "token-ids", "", "token ids to continue instead, such as 1,2,3; no start token is added")
	fs.Int64Var(&g.logprobs, "logprobs", 0, "with --json, print each token's log probability, and those of this many likeliest tokens, 0 to 20")
	fs.Int64Var(&g.minTokens, "min-tokens", 0, "let nothing end the generation before it has this many tokens")
	fs.DurationVar(&g.timeout, "timeout", 0, "time limit for the whole request; 0: none")
	fs.Int64Var(&g.priority, "priority", 0, "-100 to 100; higher is served first")
	fs.StringVar(&g.cacheSalt, "cache-salt", "", "share cached prefixes only with requests of the same salt")
	fs.BoolVar(&g.ignoreEOS, "ignore-eos", false, "continue past the model's end-of-sequence tokens")
	fs.StringVar(&g.requestID, "request-id", "", "id of the request in logs and for 'tandem explain'; the router extends an id that is taken (default: the router makes one)")
	fs.BoolVar(&g.noSpecial, "no-special", false, "do not add the start token to the prompt")
	fs.BoolVar(&g.json, "json", false, "print one JSON object a line: each token, then the result")
	g.form.add(cmd)
	g.requestFlags.add(cmd, "to generate (default: as many as the context holds)", "the generation")
	onlyOnCommandLine(cmd, "prompt", "token-ids", "logprobs", "min-tokens", "priority", "cache-salt", "ignore-eos", "request-id", "no-special")
}

func (g *generateFlags) request(cmd *cobra.Command) (*inferencev1.GenerateRequest, error) {
	request, err := g.requestFlags.request(cmd)
	if err != nil {
		return nil, err
	}
	if g.timeout < 0 {
		return nil, rpc.InvalidArgument("timeout", fmt.Sprintf("%s is negative; 0 sets no limit", g.timeout))
	}
	if g.priority < -100 || g.priority > 100 {
		return nil, rpc.InvalidArgument("priority", fmt.Sprintf("%d is outside -100 to 100", g.priority))
	}
	request.IgnoreEos, request.NoSpecialTokens = g.ignoreEOS, g.noSpecial
	request.Priority, request.CacheSalt = int32(g.priority), g.cacheSalt
	if cmd.Flags().Changed("logprobs") && !g.json {
		return nil, rpc.InvalidArgument("logprobs", "text output cannot show log probabilities: pass --json too")
	}
	if request.Logprobs, err = givenCount(cmd, "logprobs", "logprobs", g.logprobs, 0, 20); err != nil {
		return nil, err
	}
	least, err := givenCount(cmd, "min-tokens", "min_tokens", g.minTokens, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	if least != nil {
		request.MinTokens = *least
	}
	if request.StructuredOutput, err = g.form.form(cmd); err != nil {
		return nil, err
	}
	if err := g.input(cmd, request); err != nil {
		return nil, err
	}
	return request, g.checkText(request)
}

func (g *generateFlags) input(cmd *cobra.Command, request *inferencev1.GenerateRequest) error {
	prompt, tokens := cmd.Flags().Changed("prompt"), cmd.Flags().Changed("token-ids")
	switch {
	case prompt && tokens:
		return rpc.InvalidArgument("prompt", "--token-ids is given too: pass one of them")
	case tokens:
		ids, err := parseTokenIDs(g.tokenIDs)
		if err != nil {
			return err
		}
		request.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}}
		return nil
	case !prompt:
		text, err := readText(cmd, "prompt", "the prompt", maxPromptBytes)
		if err != nil {
			return err
		}
		if text == "" {
			return rpc.InvalidArgument("prompt", "standard input is empty: pass --prompt TEXT, or write the prompt to standard input")
		}
		g.prompt = text
	}
	request.Input = &inferencev1.GenerateRequest_Prompt{Prompt: g.prompt}
	return nil
}

// checkText refuses what protobuf could not carry: it fails with no field named.
func (g *generateFlags) checkText(request *inferencev1.GenerateRequest) error {
	texts := [][2]string{{"json_schema", request.GetStructuredOutput().GetJsonSchema()}, {"prompt", request.GetPrompt()}, {"model", g.model}, {"tenant", g.tenant}, {"cache_salt", g.cacheSalt}, {"regex", g.form.regex}, {"choice", g.form.choice}}
	for i, stop := range g.stop {
		texts = append(texts, [2]string{fmt.Sprintf("stop[%d]", i), stop})
	}
	for _, text := range texts {
		if !utf8.ValidString(text[1]) {
			return rpc.InvalidArgument(text[0], "is not UTF-8: convert it first, for instance with iconv")
		}
	}
	if g.requestID != "" && !rpc.ValidRequestID(g.requestID) {
		return rpc.InvalidArgument("request_id", "use 1 to 128 printable ASCII characters without spaces")
	}
	return nil
}

func parseTokenIDs(list string) ([]uint32, error) {
	if strings.TrimSpace(list) == "" {
		return nil, rpc.InvalidArgument("token_ids", "is empty: pass numbers from 0, such as 1,2,3")
	}
	// Spaces do as well as commas, but between two commas there is a number.
	fields := make([]string, 0, 1+strings.Count(list, ","))
	for _, part := range strings.Split(list, ",") {
		within := strings.Fields(part)
		if len(within) == 0 {
			within = []string{""}
		}
		fields = append(fields, within...)
	}
	ids := make([]uint32, 0, len(fields))
	for i, field := range fields {
		id, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, rpc.InvalidArgument(fmt.Sprintf("token_ids.ids[%d]", i),
				fmt.Sprintf("%q is not a token id: pass numbers from 0, such as 1,2,3", field))
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}

// readText reads all of standard input, up to the bound. field is what the
// request calls it, what is what people do.
func readText(cmd *cobra.Command, field, what string, most int) (string, error) {
	if isTerminal(cmd.InOrStdin()) {
		fmt.Fprintf(cmd.ErrOrStderr(), "Type %s; Ctrl-D on an empty line ends it.\n", what)
	}
	type read struct {
		text []byte
		err  error
	}
	done := make(chan read, 1)
	// Nothing ends a read from a terminal but the end of the process: Ctrl-C does not
	// wait for it, and it outlives the command by no more than that.
	go func() {
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), int64(most)+1))
		done <- read{text, err}
	}()
	var all read
	select {
	case all = <-done:
	case <-cmd.Context().Done():
		return "", cmd.Context().Err()
	}
	if all.err != nil {
		return "", rpc.Errorf(codes.Unavailable, "STANDARD_INPUT", "read %s from standard input: %v", what, all.err)
	}
	if len(all.text) > most {
		return "", rpc.InvalidArgument(field, fmt.Sprintf("standard input has more than %d bytes: shorten it", most))
	}
	return string(all.text), nil
}
