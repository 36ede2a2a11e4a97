//go:build !race

// The client is not ours to check for races, and takes long to compile for them.

package fakeserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/openai/openai-go"
	"github.com/openai/openai-go/option"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
)

func officialClient(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1/"), option.WithAPIKey("secret"), option.WithMaxRetries(0))
}

// OpenAI's own client parses what the fake server sends, without unknown members in
// OpenAI's dialect.
func TestOfficialClientReadsOpenAIServer(t *testing.T) {
	const tokens = 9
	for name, options := range forms() {
		if options.keepAlive {
			continue // it takes the blank line after a comment for an event without data
		}
		for _, each := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d a message", name, each), func(t *testing.T) {
				url, _ := serveOpenAI(t, fakeserver.Shape{TokensPerMessage: each}, options)
				client := officialClient(url)
				strict := options.Dialect == fakeserver.DialectOpenAI
				chat := openai.ChatCompletionNewParams{
					Model: fakeserver.Model, MaxTokens: openai.Int(tokens), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
					StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
				}
				var all openai.ChatCompletionAccumulator
				stream := client.Chat.Completions.NewStreaming(t.Context(), chat)
				chunks := 0
				for ; stream.Next(); chunks++ {
					c := stream.Current()
					if c.Object != "chat.completion.chunk" || !c.JSON.Created.Valid() || !c.JSON.Choices.Valid() || !all.AddChunk(c) {
						t.Fatalf("chunk %d: %s", chunks, c.RawJSON())
					}
					if chunks == 0 && (c.Choices[0].Delta.Role != "assistant" || c.Choices[0].Delta.Content != "") {
						t.Errorf("it begins with %s", c.RawJSON())
					}
					if strict && (len(c.JSON.ExtraFields) > 0 || len(c.Choices) > 0 && (len(c.Choices[0].JSON.ExtraFields) > 0 || len(c.Choices[0].Delta.JSON.ExtraFields) > 0)) {
						t.Errorf("it has members that OpenAI's does not: %s", c.RawJSON())
					}
				}
				if err := stream.Err(); err != nil {
					t.Fatal(err)
				}
				if got := all.Choices[0]; got.Message.Content != said(tokens) || got.FinishReason != "length" || all.Usage.CompletionTokens != tokens || all.Usage.PromptTokens == 0 {
					t.Errorf("%+v", all.ChatCompletion)
				}
				messages := 1 + (tokens-1+each-1)/each
				if want := messages + 3 - bit(!strict); chunks != want {
					t.Errorf("%d chunks, want %d: the role, %d messages, the reason unless it is vLLM, and usage", chunks, want, messages)
				}
				chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
				whole, err := client.Chat.Completions.New(t.Context(), chat)
				if err != nil || whole.Choices[0].Message.Content != said(tokens) || whole.Usage.CompletionTokens != tokens || strict && len(whole.JSON.ExtraFields) > 0 {
					t.Errorf("in one piece: %v, %v", whole, err)
				}
				text := ""
				plain := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
					Model: fakeserver.Model, MaxTokens: openai.Int(tokens), Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2, 3}},
				})
				for plain.Next() {
					c := plain.Current()
					if c.Object != "text_completion" || len(c.Choices) != 1 || strict && (len(c.JSON.ExtraFields) > 0 || len(c.Choices[0].JSON.ExtraFields) > 0) {
						t.Errorf("completion: %s", c.RawJSON())
					}
					text += c.Choices[0].Text
				}
				if err := plain.Err(); err != nil || text != said(tokens) {
					t.Errorf("completion: %q, %v", text, err)
				}
			})
		}
	}
}

func TestOfficialClientReadsErrors(t *testing.T) {
	url, _ := serveOpenAI(t, fakeserver.Shape{}, form{OpenAIOptions: fakeserver.OpenAIOptions{APIKey: "secret"}})
	full, _ := serveOpenAI(t, fakeserver.Shape{RejectShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{}})
	busy, _ := serveOpenAI(t, fakeserver.Shape{RejectShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM}})
	broken, _ := serveOpenAI(t, fakeserver.Shape{FailShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM}})
	cases := []struct {
		name, url string
		options   []option.RequestOption
		status    int
		code      string
	}{
		{"no key", url, []option.RequestOption{option.WithAPIKey("other")}, 401, "invalid_api_key"},
		{"no model", url, []option.RequestOption{option.WithJSONSet("model", "x")}, 404, "model_not_found"},
		{"no such path", url + "/x", nil, 404, "unknown_url"},
		{"unknown member", url, []option.RequestOption{option.WithJSONSet("foo", 1)}, 400, ""},
		{"a member of vLLM", url, []option.RequestOption{option.WithJSONSet("ignore_eos", true)}, 400, ""},
		{"two choices", url, []option.RequestOption{option.WithJSONSet("n", 2)}, 400, ""},
		{"options of a stream", url, []option.RequestOption{option.WithJSONSet("stream", false), option.WithJSONSet("stream_options.include_usage", true)}, 400, ""},
		{"too long", url, []option.RequestOption{option.WithJSONSet("max_tokens", 1<<20)}, 400, ""},
		{"refused", full, nil, 429, "rate_limit_exceeded"},
		{"refused by vLLM", busy, nil, 503, "503"},
	}
	for _, c := range cases {
		client := officialClient(c.url)
		stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
			Model: fakeserver.Model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")},
		}, c.options...)
		var e *openai.Error
		if stream.Next() || !errors.As(stream.Err(), &e) || e.StatusCode != c.status || e.Code != c.code || e.Message == "" || e.Type == "" {
			t.Errorf("%s: %v, want %d %s", c.name, stream.Err(), c.status, c.code)
		}
	}
	client := officialClient(broken)
	stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
		Model: fakeserver.Model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")},
	})
	if !stream.Next() || stream.Next() || stream.Err() == nil || !strings.Contains(stream.Err().Error(), "on purpose") {
		t.Errorf("broken off: %v", stream.Err())
	}
	client = officialClient(url)
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != fakeserver.Model || models.Data[0].Object != "model" || len(models.JSON.ExtraFields)+len(models.Data[0].JSON.ExtraFields) > 0 {
		t.Errorf("models: %v, %v", models, err)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
