package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func newChatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Have a conversation with the model",
		Long: `Reads what you say, line by line, and prints the answers as they come. The model's
own chat template makes prompts of the conversation. A backslash at the end of a
line goes on with the next one; """ begins and ends a text of several lines. Text
is UTF-8.

After each answer a line on standard error says what it cost: the time to the first
token and its parts, tokens a second, how much of the prompt was in a prefix cache,
and which workers were used.

Ctrl-C stops an answer and keeps what came of it; between answers, Ctrl-C or Ctrl-D
leaves. A turn that fails is not part of the conversation. /help lists the commands
there are.

Where standard input is no terminal, each line is a turn; a failed one ends it. With
--json each answer is one object with the keys of the result of 'tandem generate'.`,
		Example: `  tandem chat
  tandem chat --system "Answer in one sentence." --temperature 0.7
  printf 'Once upon a time\nThe dog\n' | tandem chat --max-tokens 20 --json`,
		Args: exactly(),
	}
	flags := new(chatFlags)
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runChat(cmd, flags) }
	return cmd
}

// chatFlags are the flags of chat.
type chatFlags struct {
	addr, system, mode, model, tenant string
	maxTokens                         int64
	sampling                          samplingFlags
	stop, arguments                   []string
	noStats, json                     bool
}

func (c *chatFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&c.addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path")
	fs.StringVar(&c.system, "system", "", "what the model is told before the conversation")
	fs.Int64Var(&c.maxTokens, "max-tokens", 0, "most tokens of an answer (default: as many as the context holds)")
	c.sampling.add(cmd, false)
	fs.StringArrayVar(&c.stop, "stop", nil, "text that ends an answer and is not printed; may be repeated")
	fs.StringVar(&c.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	// Not TANDEM_MODEL: that names a directory.
	fs.StringVar(&c.model, "model", "", "name of the model (default: the only one that is served)")
	fs.StringVar(&c.tenant, "tenant", "", "tenant to be counted under")
	fs.StringArrayVar(&c.arguments, "template-argument", nil, "variable of the chat template, such as enable_thinking=false; may be repeated")
	fs.BoolVar(&c.noStats, "no-stats", false, "do not say what answers cost")
	fs.BoolVar(&c.json, "json", false, "print one JSON object for each answer")
	oneOf(cmd, "mode", api.Names[inferencev1.Mode]()...)
	onlyOnCommandLine(cmd, "system", "max-tokens", "stop", "mode", "model", "template-argument", "no-stats", "json")
}

// request is what all turns have in common.
func (c *chatFlags) request(cmd *cobra.Command) (*inferencev1.GenerateRequest, error) {
	mode, err := parseMode(c.mode)
	if err != nil {
		return nil, err
	}
	request := &inferencev1.GenerateRequest{Model: c.model, Stop: c.stop, Mode: mode, Tenant: c.tenant}
	if request.Sampling, err = c.sampling.sampling(cmd); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("max-tokens") {
		if c.maxTokens < 1 || c.maxTokens > math.MaxInt32 {
			return nil, rpc.InvalidArgument("max_tokens", fmt.Sprintf("%d is outside 1 to %d", c.maxTokens, math.MaxInt32))
		}
		request.MaxTokens = proto.Uint32(uint32(c.maxTokens))
	}
	conversation := new(inferencev1.Conversation)
	if conversation.TemplateArguments, err = templateArguments(c.arguments); err != nil {
		return nil, err
	}
	request.Input = &inferencev1.GenerateRequest_Conversation{Conversation: conversation}
	for _, text := range append([]string{c.system, c.model, c.tenant}, c.stop...) {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%q is not UTF-8: convert it first, for instance with iconv", text)
		}
	}
	return request, nil
}

// templateArguments reads NAME=VALUE, where VALUE is JSON or else text.
func templateArguments(list []string) (*structpb.Struct, error) {
	if len(list) == 0 {
		return nil, nil
	}
	fields := make(map[string]any)
	for _, each := range list {
		name, text, found := strings.Cut(each, "=")
		if !found || name == "" {
			return nil, rpc.InvalidArgument("template_arguments", fmt.Sprintf("%q has no value: pass NAME=VALUE, such as enable_thinking=false", each))
		}
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		fields[name] = value
	}
	out, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, rpc.InvalidArgument("template_arguments", err.Error())
	}
	return out, nil
}
