//go:build !race

// The client takes minutes to compile for the race detector. What it asks is checked for races
// in services/router/openai, and by the tests here that need no client.

package mesh_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// weather is what asks for the weather.
func weather() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "gpt-anything", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("How is the weather?")}, Seed: openai.Int(3),
		Tools: []openai.ChatCompletionToolUnionParam{
			openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "get_weather", Parameters: openai.FunctionParameters{
				"type": "object", "additionalProperties": false, "required": []string{"city", "days"},
				"properties": map[string]any{"city": map[string]any{"enum": []string{"Paris", "Rome"}}, "days": map[string]any{"type": "integer", "minimum": 1, "maximum": 7}},
			}}),
			openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "give_up"}),
		},
		ToolChoice: openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: param.NewOpt("required")},
	}
}

// checkCall holds a call against what weather says of its function, by hand.
func checkCall(t *testing.T, name, arguments string) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal([]byte(arguments), &got); err != nil {
		t.Errorf("%s: %v", arguments, err)
		return
	}
	days, _ := got["days"].(float64)
	switch {
	case name == "give_up" && len(got) == 0:
	case name == "get_weather" && len(got) == 2 && slices.Contains([]any{"Paris", "Rome"}, got["city"]) && slices.Contains([]float64{1, 2, 3, 4, 5, 6, 7}, days):
	default:
		t.Errorf("%s(%s) is no tool call", name, arguments)
	}
}

// The official client asks for calls, and takes them whole and from a stream. The bundled model
// knows no tools: what it writes is held to them.
func TestOfficialClientGetsToolCalls(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		one := weather()
		one.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "get_weather"})
		for name, q := range map[string]openai.ChatCompletionNewParams{"required": weather(), "named": one} {
			q.ParallelToolCalls = openai.Bool(false)
			whole, err := client.Chat.Completions.New(t.Context(), q)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			m := whole.Choices[0].Message
			if len(m.ToolCalls) != 1 || whole.Choices[0].FinishReason != "tool_calls" || m.Content != "" {
				t.Fatalf("%s: %s", name, whole.RawJSON())
			}
			call := m.ToolCalls[0]
			checkCall(t, call.Function.Name, call.Function.Arguments)
			if name == "named" && call.Function.Name != "get_weather" {
				t.Errorf("%s was called", call.Function.Name)
			}
			stream := client.Chat.Completions.NewStreaming(t.Context(), q)
			var all openai.ChatCompletionAccumulator
			pieces := 0
			for stream.Next() {
				if !all.AddChunk(stream.Current()) {
					t.Errorf("%s: the message %s does not fit", name, stream.Current().RawJSON())
				}
				pieces += len(stream.Current().Choices[0].Delta.ToolCalls)
			}
			if stream.Err() != nil || len(all.Choices) != 1 || len(all.Choices[0].Message.ToolCalls) != 1 {
				t.Fatalf("%s: streamed %+v, %v", name, all.Choices, stream.Err())
			}
			if got := all.Choices[0].Message.ToolCalls[0]; got.Function.Name != call.Function.Name || got.Function.Arguments != call.Function.Arguments || got.ID == call.ID || all.Choices[0].FinishReason != "tool_calls" || pieces < 2 {
				t.Errorf("%s: streamed %s in %d pieces, whole %s", name, got.RawJSON(), pieces, call.RawJSON())
			}
			// The conversation goes on with what the tool said.
			q.Messages = append(q.Messages, m.ToParam(), openai.ToolMessage("sunny", call.ID))
			q.ToolChoice.OfAuto = param.NewOpt("none")
			q.ToolChoice.OfFunctionToolChoice = nil
			q.MaxTokens = openai.Int(5)
			if next, err := client.Chat.Completions.New(t.Context(), q); err != nil || len(next.Choices[0].Message.ToolCalls) > 0 || next.Choices[0].FinishReason != "length" {
				t.Errorf("%s: went on with %v, %v", name, next, err)
			}
		}
		_, err := client.Chat.Completions.New(t.Context(), weather(), option.WithJSONSet("tools.0.function.parameters.properties.city", map[string]any{"not": map[string]any{}}), option.WithJSONSet("tools.0.function.strict", true))
		checkField(t, err, "tools[0].function.parameters")
		_, err = client.Chat.Completions.New(t.Context(), weather(), option.WithJSONSet("tool_choice", "auto"))
		checkField(t, err, "tool_choice")
	})
}

func checkField(t *testing.T, err error, field string) {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusBadRequest || e.Param != field {
		t.Errorf("%v, want %s", err, field)
	}
}
