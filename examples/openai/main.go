// Command openai asks a model with OpenAI's own client and prints the answer as it comes.
//
//	go run ./examples/openai "Tell me of a king."
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := ask(ctx, cmp.Or(strings.Join(os.Args[1:], " "), "Tell me of a king."))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, message(err))
		os.Exit(1)
	}
}

func ask(ctx context.Context, prompt string) error {
	url := cmp.Or(os.Getenv("OPENAI_BASE_URL"), "http://127.0.0.1:8080/v1")
	client := openai.NewClient(
		option.WithBaseURL(url),
		option.WithAPIKey(cmp.Or(os.Getenv("OPENAI_API_KEY"), "any")),
		option.WithUnsafeAllowHTTP(), // without TLS, on this machine
		option.WithMaxRetries(3),     // where the server is full; it says when to come back
	)
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model:         cmp.Or(os.Getenv("OPENAI_MODEL"), "fable"),
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage(prompt)},
		MaxTokens:     openai.Int(60),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	})
	defer stream.Close()
	var usage openai.CompletionUsage
	for stream.Next() {
		chunk := stream.Current()
		for _, choice := range chunk.Choices {
			fmt.Print(choice.Delta.Content)
		}
		if chunk.Usage.TotalTokens > 0 {
			usage = chunk.Usage
		}
	}
	err := stream.Err()
	if failed, is := errors.AsType[*net.OpError](err); is && failed.Op == "dial" {
		return fmt.Errorf("no answer from %s: start a mesh with 'tandem up', or set OPENAI_BASE_URL", url)
	}
	if err != nil {
		return err
	}
	fmt.Println()
	fmt.Fprintf(os.Stderr, "[%d prompt tokens, %d in the answer]\n", usage.PromptTokens, usage.CompletionTokens)
	return nil
}

// message is what the server says is wrong, without the request around it.
func message(err error) string {
	if refused, is := errors.AsType[*openai.Error](err); is && refused.Message != "" {
		return fmt.Sprintf("%d: %s", refused.StatusCode, refused.Message)
	}
	return err.Error()
}
