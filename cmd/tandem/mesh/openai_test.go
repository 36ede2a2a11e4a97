//go:build !race

// The client takes minutes to compile for the race detector. What it asks is checked for races
// in services/router/openai, and by the tests here that need no client.

package mesh_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// overOpenAI gives the official client of a running mesh to a test.
func overOpenAI(t *testing.T, change func(*mesh.UpOptions), test func(t *testing.T, up mesh.Up, client openai.Client)) {
	t.Helper()
	whileUp(t, change, func(t *testing.T, up mesh.Up) {
		transport := &http.Transport{}
		test(t, up, openai.NewClient(option.WithUnsafeAllowHTTP(), option.WithBaseURL("http://"+up.HTTP+"/v1/"), option.WithAPIKey("any"),
			option.WithHTTPClient(&http.Client{Transport: transport}), option.WithMaxRetries(0)))
		transport.CloseIdleConnections()
	})
}

func completion(prompt string, most int64) openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model: "gpt-anything", MaxTokens: openai.Int(most), Seed: openai.Int(-7),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(prompt)},
	}
}

func TestOfficialClient(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		ctx := t.Context()
		models, err := client.Models.List(ctx)
		if err != nil || len(models.Data) != 1 || models.Data[0].ID != "fable" {
			t.Fatalf("models %v, %v", models, err)
		}
		if m, err := client.Models.Get(ctx, "gpt-anything"); err != nil || m.ID != "gpt-anything" {
			t.Errorf("an alias: %v, %v", m, err)
		}
		whole, err := client.Completions.New(ctx, completion("Once upon a time", 9))
		if err != nil {
			t.Fatal(err)
		}
		if whole.Model != "fable" || whole.Usage.CompletionTokens != 9 || whole.Choices[0].FinishReason != openai.CompletionChoiceFinishReasonLength {
			t.Errorf("answer %s", whole.RawJSON())
		}
		q := completion("Once upon a time", 9)
		q.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := client.Completions.NewStreaming(ctx, q)
		text, usage := "", int64(0)
		for stream.Next() {
			for _, c := range stream.Current().Choices {
				text += c.Text
			}
			usage += stream.Current().Usage.TotalTokens
		}
		if stream.Err() != nil || text != whole.Choices[0].Text || usage != whole.Usage.TotalTokens {
			t.Errorf("streamed %q, %d tokens, %v; whole %q, %d", text, usage, stream.Err(), whole.Choices[0].Text, whole.Usage.TotalTokens)
		}
		q = completion("Once upon a time", 4)
		q.N = openai.Int(3)
		three, err := client.Completions.New(ctx, q)
		if err != nil || len(three.Choices) != 3 || three.Usage.CompletionTokens != 12 || three.Usage.PromptTokens != whole.Usage.PromptTokens {
			t.Errorf("three: %v, %v", three, err)
		}
	})
}

func TestOfficialClientGetsErrors(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		for _, c := range []struct {
			name, param, code string
			status            int
			option            option.RequestOption
		}{
			{"no such model", "model", "model_not_found", 404, option.WithJSONSet("model", "nobody")},
			{"too warm", "temperature", "invalid_value", 400, option.WithJSONSet("temperature", 1000)},
			{"too long", "prompt", "context_length_exceeded", 400, option.WithJSONSet("prompt", strings.Repeat("a b ", 3000))},
			{"too many", "max_tokens", "context_length_exceeded", 400, option.WithJSONSet("max_tokens", 1<<20)},
			{"unknown token", "prompt", "invalid_value", 400, option.WithJSONSet("prompt", []int{1, 1 << 20})},
			{"a form", "response_format", "unsupported_parameter", 400, option.WithJSONSet("response_format", map[string]string{"type": "yaml"})},
			{"a keyword", "response_format", "invalid_value", 400, option.WithJSONSet("response_format", map[string]any{
				"type": "json_schema", "json_schema": map[string]any{"name": "x", "schema": map[string]any{"not": map[string]any{}}},
			})},
		} {
			_, err := client.Completions.New(t.Context(), completion("a", 1), c.option)
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != c.status || e.Param != c.param || e.Code != c.code || e.Message == "" || e.Type != "invalid_request_error" {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

// A refused request is sent again by the client when the server said.
// The official client's own way to ask for JSON of a schema.
func TestOfficialClientGetsJSON(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		schema := map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"yes", "why"},
			"properties": map[string]any{"yes": map[string]any{"type": "boolean"}, "why": map[string]any{"enum": []string{"so", "who knows"}}},
		}
		answer, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
			Model: "gpt-anything", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Is the king good?")},
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{
				JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "verdict", Schema: schema, Strict: openai.Bool(true)},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var verdict struct {
			Yes *bool
			Why string
		}
		if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &verdict); err != nil || verdict.Yes == nil || verdict.Why != "so" && verdict.Why != "who knows" {
			t.Errorf("%s: %v", answer.RawJSON(), err)
		}
		if answer.Choices[0].FinishReason != "stop" {
			t.Errorf("it ended with %q", answer.Choices[0].FinishReason)
		}
	})
}

func TestOfficialClientTriesAgain(t *testing.T) {
	overOpenAI(t, func(o *mesh.UpOptions) { o.Router.Routing.TenantMaxRequests = 1 }, func(t *testing.T, _ mesh.Up, client openai.Client) {
		long := client.Completions.NewStreaming(t.Context(), completion("Once", 1000))
		defer func() { _ = long.Close() }()
		if !long.Next() {
			t.Fatal(long.Err())
		}
		var header http.Header
		_, err := client.Completions.New(t.Context(), completion("Twice", 1), option.WithMiddleware(func(q *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			response, err := next(q)
			if err == nil {
				header = response.Header
			}
			return response, err
		}))
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != http.StatusTooManyRequests || header.Get("Retry-After") == "" || header.Get("Retry-After-Ms") == "" || header.Get("X-Request-Id") == "" {
			t.Errorf("error %v, header %v", err, header)
		}
		if err := long.Close(); err != nil {
			t.Error(err)
		}
		if _, err := client.Completions.New(t.Context(), completion("Twice", 1), option.WithMaxRetries(10)); err != nil {
			t.Errorf("tried again: %v", err)
		}
	})
}
