// Command tools lets the model call a function, with OpenAI's client: it offers the function, makes
// the call, and sends back what it gave.
//
//	go run ./examples/tools "How is the weather in Rome?"
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
)

// weather is the function. Its arguments always obey the schema.
var weather = openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
	Name:        "weather",
	Description: openai.String("The weather of the next days"),
	Parameters: openai.FunctionParameters{
		"type": "object",
		"properties": map[string]any{
			"city": map[string]any{"enum": []string{"Paris", "Rome"}},
			"days": map[string]any{"type": "integer", "minimum": 1, "maximum": 7},
		},
		"required":             []string{"city", "days"},
		"additionalProperties": false,
	},
})

func forecast(arguments string) (string, error) {
	var a struct {
		City string
		Days int
	}
	if err := json.Unmarshal([]byte(arguments), &a); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d days: sun", a.City, a.Days), nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := ask(ctx, cmp.Or(strings.Join(os.Args[1:], " "), "How is the weather in Rome?"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, question string) error {
	url := cmp.Or(os.Getenv("OPENAI_BASE_URL"), "http://127.0.0.1:8080/v1")
	client := openai.NewClient(
		option.WithBaseURL(url), option.WithAPIKey(cmp.Or(os.Getenv("OPENAI_API_KEY"), "any")),
		option.WithUnsafeAllowHTTP(), option.WithMaxRetries(3),
	)
	chat := openai.ChatCompletionNewParams{
		Model:     cmp.Or(os.Getenv("OPENAI_MODEL"), "fable"),
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)},
		Tools:     []openai.ChatCompletionToolUnionParam{weather},
		MaxTokens: openai.Int(100),
		// The bundled model has not learned to call anything. Others decide by themselves, which is
		// the default.
		ToolChoice:        openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: param.NewOpt("required")},
		ParallelToolCalls: openai.Bool(false),
	}
	answer, err := client.Chat.Completions.New(ctx, chat)
	if failed, is := errors.AsType[*net.OpError](err); is && failed.Op == "dial" {
		return fmt.Errorf("no answer from %s: start a mesh with 'tandem up', or set OPENAI_BASE_URL", url)
	}
	if err != nil {
		return err
	}
	message := answer.Choices[0].Message
	chat.Messages = append(chat.Messages, message.ToParam())
	for _, call := range message.ToolCalls {
		result, err := forecast(call.Function.Arguments)
		if err != nil {
			return fmt.Errorf("the call %s: %w", call.Function.Arguments, err)
		}
		fmt.Printf("%s(%s) = %s\n", call.Function.Name, call.Function.Arguments, result)
		chat.Messages = append(chat.Messages, openai.ToolMessage(result, call.ID))
	}
	chat.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: param.NewOpt("none")}
	if answer, err = client.Chat.Completions.New(ctx, chat); err != nil {
		return err
	}
	fmt.Println(answer.Choices[0].Message.Content)
	return nil
}
