package commands

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func newChatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Have a conversation with the model",
		Long: `Reads what you say, line by line, and prints the answers as they come. The model's
own chat template turns the conversation into prompts. A backslash at the end of a
line continues it on the next; """ begins and ends a text of several lines. Text is
UTF-8.

At a terminal you can edit the line, and the arrow keys bring back the last hundred;
they are kept in memory only. Lines that you paste together are one text: Enter
sends it.

An answer ends where the model ends it, and after --max-tokens at the latest. The
bundled model continues tales, and hardly ever ends one.

After each answer, a line on standard error shows the time to the first token and its
parts, tokens per second, how much of the prompt was in a prefix cache, and which
workers were used.

Ctrl-C stops an answer and keeps what arrived of it, or empties the line. At an empty
line, Ctrl-D, Ctrl-C twice, exit or quit leaves. A turn that fails is not part of the
conversation. /help lists the commands.

If standard input is not a terminal, each line is a turn, and a failed turn ends the
chat. With --json each answer is one object with the keys of the result of 'tandem
generate'.`,
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

type chatFlags struct {
	requestFlags
	system    string
	arguments []string
	noStats   bool
}

func (c *chatFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&c.system, "system", "", "system message, sent to the model before the conversation")
	fs.StringArrayVar(&c.arguments, "template-argument", nil, "variable of the chat template, such as enable_thinking=false; may be repeated")
	fs.BoolVar(&c.noStats, "no-stats", false, "do not print the line of figures after each answer")
	fs.BoolVar(&c.json, "json", false, "print one JSON object for each answer")
	c.requestFlags.add(cmd, "of an answer (default: an eighth of the context, 2048 at most)", "an answer")
	onlyOnCommandLine(cmd, "system", "template-argument", "no-stats")
}

// request is what all turns have in common.
func (c *chatFlags) request(cmd *cobra.Command) (*inferencev1.GenerateRequest, error) {
	request, err := c.requestFlags.request(cmd)
	if err != nil {
		return nil, err
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
