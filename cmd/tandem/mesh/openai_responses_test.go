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
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

func responseTo(input string, most int64) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: "gpt-anything", MaxOutputTokens: openai.Int(most), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(input)},
	}
}

// withSeed asks for the same tokens each time. OpenAI's responses have no seed; ours do.
var withSeed = option.WithJSONSet("seed", 7)

// The official client gets responses, whole and streamed, and a chat's text.
func TestOfficialClientGetsResponses(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		ctx := t.Context()
		q := responseTo("Tell me of a king.", 9)
		q.Instructions = openai.String("Be brief.")
		q.Metadata = shared.Metadata{"team": "a"}
		whole, err := client.Responses.New(ctx, q, withSeed)
		if err != nil {
			t.Fatal(err)
		}
		if whole.Model != "fable" || whole.Status != responses.ResponseStatusIncomplete || whole.IncompleteDetails.Reason != "max_output_tokens" || whole.Metadata["team"] != "a" ||
			whole.Usage.OutputTokens != 9 || whole.Usage.TotalTokens != whole.Usage.InputTokens+9 || whole.OutputText() == "" {
			t.Errorf("answer %s", whole.RawJSON())
		}
		chat, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "gpt-anything", MaxTokens: openai.Int(9), Seed: openai.Int(7),
			Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("Tell me of a king.")},
		})
		if err != nil || chat.Choices[0].Message.Content != whole.OutputText() || chat.Usage.PromptTokens != whole.Usage.InputTokens {
			t.Errorf("a chat says %v, %v; the response %s", chat, err, whole.RawJSON())
		}
		counted, err := client.Responses.InputTokens.Count(ctx, responses.InputTokenCountParams{
			Instructions: q.Instructions, Input: responses.InputTokenCountParamsInputUnion{OfString: q.Input.OfString},
		})
		if err != nil || counted.InputTokens != whole.Usage.InputTokens {
			t.Errorf("counted %v, %v; used %d", counted, err, whole.Usage.InputTokens)
		}
		stream := client.Responses.NewStreaming(ctx, q, withSeed)
		text, number := "", int64(0)
		var last responses.ResponseStreamEventUnion
		for ; stream.Next(); number++ {
			last = stream.Current()
			if last.SequenceNumber != number {
				t.Errorf("event %d is number %d", number, last.SequenceNumber)
			}
			if last.Type == "response.output_text.delta" {
				text += last.Delta
			}
		}
		if stream.Err() != nil || last.Type != "response.incomplete" || text != whole.OutputText() || last.Response.OutputText() != text || last.Response.Usage.OutputTokens != 9 {
			t.Errorf("streamed %q, %v; last %s", text, stream.Err(), last.RawJSON())
		}
		// The next turn: what the model said goes back as it came.
		item := whole.Output[0].AsMessage().ToParam()
		q.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage("Tell me of a king.", responses.EasyInputMessageRoleUser),
			{OfOutputMessage: &item},
			responses.ResponseInputItemParamOfMessage("And of a queen?", responses.EasyInputMessageRoleUser),
		}}
		q.Include = []responses.ResponseIncludable{responses.ResponseIncludableMessageOutputTextLogprobs}
		q.TopLogprobs = openai.Int(2)
		next, err := client.Responses.New(ctx, q)
		if err != nil || next.Usage.InputTokens <= whole.Usage.TotalTokens {
			t.Fatalf("the next turn: %v, %v", next, err)
		}
		if likelihoods := next.Output[0].AsMessage().Content[0].AsOutputText().Logprobs; len(likelihoods) != 9 || len(likelihoods[0].TopLogprobs) != 2 {
			t.Errorf("log probabilities %v", likelihoods)
		}
	})
}

// The official client gets JSON of a schema in a response.
func TestOfficialClientGetsResponsesOfJSON(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		q := responseTo("Is the king good?", 200)
		q.Text.Format = responses.ResponseFormatTextConfigUnionParam{OfJSONSchema: &responses.ResponseFormatTextJSONSchemaConfigParam{
			Name: "verdict", Strict: openai.Bool(true), Schema: map[string]any{
				"type": "object", "additionalProperties": false, "required": []string{"why"}, "properties": map[string]any{"why": map[string]any{"enum": []string{"so", "who knows"}}},
			},
		}}
		answer, err := client.Responses.New(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var verdict struct{ Why string }
		if err := json.Unmarshal([]byte(answer.OutputText()), &verdict); err != nil || verdict.Why != "so" && verdict.Why != "who knows" || answer.Status != responses.ResponseStatusCompleted {
			t.Errorf("%s: %v", answer.RawJSON(), err)
		}
	})
}

// The official client has a function called: it gets the call, whole and streamed, and sends what the
// function returned.
func TestOfficialClientGetsResponsesWithCalls(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		ctx := t.Context()
		q := responseTo("How warm is it?", 200)
		q.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"city"}, "properties": map[string]any{"city": map[string]any{"enum": []string{"Rome", "Oslo"}}},
		}, true)}
		q.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfFunctionTool: &responses.ToolChoiceFunctionParam{Name: "weather"}}
		answer, err := client.Responses.New(ctx, q, withSeed)
		if err != nil || len(answer.Output) != 1 {
			t.Fatalf("%v, %v", answer, err)
		}
		call := answer.Output[0].AsFunctionCall()
		var where struct{ City string }
		if err := json.Unmarshal([]byte(call.Arguments), &where); err != nil || where.City != "Rome" && where.City != "Oslo" || call.Name != "weather" || call.CallID == "" || answer.Status != responses.ResponseStatusCompleted {
			t.Errorf("%s: %v", answer.RawJSON(), err)
		}
		stream := client.Responses.NewStreaming(ctx, q, withSeed)
		pieces := ""
		var last responses.ResponseStreamEventUnion
		for stream.Next() {
			if last = stream.Current(); last.Type == "response.function_call_arguments.delta" {
				pieces += last.Delta
			}
		}
		if stream.Err() != nil || pieces != call.Arguments || last.Response.Output[0].AsFunctionCall().Arguments != pieces {
			t.Errorf("streamed %q, %v; last %s", pieces, stream.Err(), last.RawJSON())
		}
		made := call.ToParam()
		q.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsNone)}
		q.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage("How warm is it?", responses.EasyInputMessageRoleUser), {OfFunctionCall: &made},
			{OfFunctionCallOutput: &responses.ResponseInputItemFunctionCallOutputParam{
				CallID: openai.String(call.CallID), Output: responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: openai.String("21 degrees")},
			}},
		}}
		next, err := client.Responses.New(ctx, q)
		if err != nil || next.Output[0].Type != "message" {
			t.Errorf("after the call: %v, %v", next, err)
		}
	})
}

// What the official client's own tests ask of responses with ids that nobody made, of one that was
// made: it is as unknown, since none is kept. And their request for a response, without what needs
// such an id.
func TestOfficialClientsCallsOfResponses(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		ctx := t.Context()
		made, err := client.Responses.New(ctx, responses.ResponseNewParams{
			AccessPrograms: responses.ResponseNewParamsAccessPrograms{Cyber: "standard"}, Background: openai.Bool(false),
			Include: []responses.ResponseIncludable{responses.ResponseIncludableFileSearchCallResults}, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("string")},
			Instructions: openai.String("instructions"), MaxOutputTokens: openai.Int(16), MaxToolCalls: openai.Int(0), Metadata: shared.Metadata{"foo": "string"}, Model: "gpt-6-astra",
			Moderation: responses.ResponseNewParamsModeration{Model: "model"}, ParallelToolCalls: openai.Bool(true), PromptCacheKey: openai.String("prompt-cache-key-1234"),
			PromptCacheOptions: responses.ResponseNewParamsPromptCacheOptions{Mode: "implicit", Ttl: "30m"}, PromptCacheRetention: responses.ResponseNewParamsPromptCacheRetentionInMemory,
			Reasoning: shared.ReasoningParam{Effort: shared.ReasoningEffortNone, Summary: shared.ReasoningSummaryAuto}, SafetyIdentifier: openai.String("safety-identifier-1234"),
			ServiceTier: responses.ResponseNewParamsServiceTierAuto, Store: openai.Bool(true), Temperature: openai.Float(1),
			Text:       responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigUnionParam{OfText: &shared.ResponseFormatTextParam{}}, Verbosity: responses.ResponseTextConfigVerbosityLow},
			ToolChoice: responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsNone)},
			Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
				Name: "name", Parameters: map[string]any{"foo": "bar"}, Strict: openai.Bool(true), Description: openai.String("description"),
			}}},
			TopLogprobs: openai.Int(0), TopP: openai.Float(1), Truncation: responses.ResponseNewParamsTruncationAuto, User: openai.String("user-1234"),
		})
		if err != nil {
			t.Fatal(err)
		}
		wants := func(what string, err error, status int, param, code string) {
			t.Helper()
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != status || e.Param != param || e.Code != code || e.Type != "invalid_request_error" {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err = client.Responses.Get(ctx, made.ID, responses.ResponseGetParams{})
		wants("get", err, http.StatusNotFound, "", "")
		wants("delete", client.Responses.Delete(ctx, made.ID), http.StatusNotFound, "", "")
		_, err = client.Responses.Cancel(ctx, made.ID)
		wants("cancel", err, http.StatusNotFound, "", "")
		_, err = client.Responses.InputItems.List(ctx, made.ID, responses.InputItemListParams{})
		wants("items", err, http.StatusNotFound, "", "")
		q := responseTo("And then?", 4)
		q.PreviousResponseID = openai.String(made.ID)
		_, err = client.Responses.New(ctx, q)
		wants("the next", err, http.StatusBadRequest, "previous_response_id", "previous_response_not_found")
		if models, err := client.Models.List(ctx); err != nil || !slices.ContainsFunc(models.Data, func(m openai.Model) bool { return m.ID == made.Model }) {
			t.Errorf("models %v, %v", models, err)
		}
	})
}
