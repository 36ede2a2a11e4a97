package commands_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

type stream = grpc.ServerStreamingServer[inferencev1.GenerateEvent]

func accepted() *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{
		RequestId: "r1", Model: "fable", PromptTokens: 5, Seed: 42, SystemFingerprint: "fp_0123456789ab", Secret: "s1",
	}}}
}

func tokens(offset uint64, text string, ids ...uint32) *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Offset: offset, Event: &inferencev1.GenerateEvent_Tokens{
		Tokens: &inferencev1.TokenDelta{TokenIds: ids, Text: text},
	}}
}

func finished(offset uint64, text string) *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Offset: offset, Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
		Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, Text: text,
		Usage: &inferencev1.Usage{PromptTokens: 5, CachedTokens: 2, CompletionTokens: uint32(offset)},
		Route: &inferencev1.Route{
			Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "p", Decode: "d", Reason: "asked for", Reproducible: true, Transport: "tcp",
		},
		Timings: &inferencev1.Timings{
			TokenizeNs: 1e6, QueueNs: 2e6, DecideNs: 3e6, ReserveNs: 4e6, PrefillNs: 5e6, TransferExposedNs: 6e6,
			DecodeNs: 7e6, TotalNs: 28_500_000, TtftNs: 15e6, SecondTokenNs: 8e6, TpotNs: 3_500_000,
			PrefillQueueNs: 1_500_000, PrefillComputeNs: 4_500_000, DecodeComputeNs: 6_500_000, TransferNs: 9e6,
			TransferBytes: 4096, RetriedNs: 500_000, FetchNs: 250_000, TransferTailNs: 750_000,
		},
	}}}
}

// The last line says that an answer went on elsewhere.
func TestCostSaysThatAWorkerWasLost(t *testing.T) {
	for retries, want := range map[uint32]string{
		0: "; disaggregated on p to d]", 1: "on p to d; continued on d after a worker was lost]", 2: "; continued on d after 2 workers were lost]",
	} {
		f := finished(4, "").GetFinished()
		f.Route.Retries = retries
		if got := commands.Cost(f); !strings.HasSuffix(got, want) {
			t.Errorf("%d retries: %q, want %q", retries, got, want)
		}
	}
}

func sends(events ...*inferencev1.GenerateEvent) func(*inferencev1.GenerateRequest, stream) error {
	return func(_ *inferencev1.GenerateRequest, s stream) error {
		for _, e := range events {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
}

const goldenResult = `{"finish_reason":"length","text":"a tale é","token_ids":[7,8,9,10],` +
	`"usage":{"prompt_tokens":5,"cached_tokens":2,"completion_tokens":4},` +
	`"route":{"mode":"disaggregated","prefill":"p","decode":"d","reason":"asked for","retries":0,"hedged":false,"reproducible":true,"transport":"tcp"},` +
	`"timing_ms":{"queue":2,"tokenize":1,"retried":0.5,"decide":3,"reserve":4,"prefill":5,"ttft":15,"second_token":8,"transfer_exposed":6,` +
	`"decode":7,"tpot":3.5,"other":0,"total":28.5,"detail":{"prefill_queue":1.5,"prefill_compute":4.5,"decode_compute":6.5,` +
	`"transfer":9,"transfer_tail":0.75,"fetch":0.25,"transfer_bytes":4096}},"request_id":"r1","secret":"s1","model":"fable","seed":42,"stop":"","system_fingerprint":"fp_0123456789ab"}` + "\n"

func TestGenerateJSON(t *testing.T) {
	router := &fakeRouter{generate: sends(accepted(), tokens(0, "a", 7), tokens(1, " tale ", 8, 9), tokens(3, "", 10), finished(4, "é"))}
	got := run(t.Context(), "", nil, "generate", "--addr", router.start(t), "--prompt", "x", "--json")
	want := `{"offset":0,"token_id":7,"text":"a"}` + "\n" +
		`{"offset":1,"token_id":8,"text":""}` + "\n" +
		`{"offset":2,"token_id":9,"text":" tale "}` + "\n" +
		`{"offset":3,"token_id":10,"text":"é"}` + "\n" + goldenResult
	if diff := cmp.Diff(want, got.stdout); diff != "" || got.status != 0 || got.stderr != "" {
		t.Errorf("status %d, standard error %q, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
}

// One name has one number: each stage is in timing_ms by its name, with what explain, budget
// and metrics say it took, and with other they add up to the total.
func TestTimingsAreTheStages(t *testing.T) {
	router := &fakeRouter{generate: sends(accepted(), tokens(0, "a", 7), finished(1, ""))}
	result := last(t, run(t.Context(), "", nil, "generate", "--addr", router.start(t), "--prompt", "x", "--json").stdout)
	timing, ok := result["timing_ms"].(map[string]any)
	if !ok {
		t.Fatalf("no timing_ms: %v", result)
	}
	sum := timing["other"].(float64)
	for stage, took := range api.StagesOf(finished(1, "").GetFinished().GetTimings()) {
		got, given := timing[api.Stage(stage).String()].(float64)
		if want := float64(took) / float64(time.Millisecond); !given || got != want {
			t.Errorf("%v: %v, want %v", api.Stage(stage), got, want)
		}
		sum += got
	}
	if sum != timing["total"] {
		t.Errorf("the stages and other add up to %v of %v", sum, timing["total"])
	}
}

// The texts of the lines are the text of the result, wherever text is held back.
func TestGenerateJSONTextsAddUp(t *testing.T) {
	cases := map[string]struct {
		events []*inferencev1.GenerateEvent
		flags  []string
	}{
		"all at once":             {[]*inferencev1.GenerateEvent{tokens(0, "a b", 1, 2, 3), finished(3, "")}, nil},
		"held at max tokens":      {[]*inferencev1.GenerateEvent{tokens(0, "a", 1), tokens(1, " ", 2), finished(2, "\ufffd")}, []string{"--max-tokens=2"}},
		"held after no text":      {[]*inferencev1.GenerateEvent{tokens(0, "a", 1), tokens(1, "", 2), finished(2, "é")}, nil},
		"start of a stop text":    {[]*inferencev1.GenerateEvent{tokens(0, "a", 1), tokens(1, "b", 2), finished(2, "EN")}, []string{"--stop=END"}},
		"text without a token":    {[]*inferencev1.GenerateEvent{tokens(0, "", 1), tokens(1, "a"), tokens(1, "b", 2), finished(2, "")}, nil},
		"nothing but the end":     {[]*inferencev1.GenerateEvent{finished(0, "")}, nil},
		"markup stays as it is":   {[]*inferencev1.GenerateEvent{tokens(0, "<b>&", 1), finished(1, "")}, nil},
		"line breaks are escaped": {[]*inferencev1.GenerateEvent{tokens(0, "\n\n", 1), finished(1, "")}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			router := &fakeRouter{generate: sends(append([]*inferencev1.GenerateEvent{accepted()}, c.events...)...)}
			args := append([]string{"generate", "--addr", router.start(t), "--prompt", "x", "--json"}, c.flags...)
			got := run(t.Context(), "", nil, args...)
			lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
			var text strings.Builder
			var ids []uint32
			for i, line := range lines[:len(lines)-1] {
				var token struct {
					Offset  uint64
					TokenID uint32 `json:"token_id"`
					Text    string
				}
				if err := json.Unmarshal([]byte(line), &token); err != nil || token.Offset != uint64(i) {
					t.Fatalf("line %d is %q: %v", i, line, err)
				}
				ids = append(ids, token.TokenID)
				text.WriteString(token.Text)
			}
			result := last(t, got.stdout)
			if result["text"] != text.String() {
				t.Errorf("texts of the lines %q, text of the result %q", text.String(), result["text"])
			}
			if n := len(result["token_ids"].([]any)); n != len(ids) {
				t.Errorf("%d lines, %d token ids in the result", len(ids), n)
			}
		})
	}
}

// A token's line must not wait for the next token, which may be a KV transfer away.
func TestGenerateJSONDoesNotHoldTokensBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	router := &fakeRouter{generate: func(_ *inferencev1.GenerateRequest, s stream) error {
		if err := s.Send(accepted()); err != nil {
			return err
		}
		if err := s.Send(tokens(0, "a", 7)); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}
	out := &signalWriter{seen: make(chan struct{})}
	addr := router.start(t)
	status := make(chan int, 1)
	go func() { status <- runTo(ctx, out, "generate", "--addr", addr, "--prompt", "x", "--json") }()
	<-out.seen
	cancel()
	if got := <-status; got != 130 {
		t.Errorf("exit status %d, want 130", got)
	}
	result := last(t, out.text.String())
	if result["finish_reason"] != "cancelled" || result["text"] != "a" {
		t.Errorf("result %v, want cancelled with the text so far", result)
	}
}

func TestGeneratePlain(t *testing.T) {
	router := &fakeRouter{generate: sends(accepted(), tokens(0, "a", 7), tokens(1, " tale", 8), finished(2, "."))}
	got := run(t.Context(), "", nil, "generate", "--addr", router.start(t), "--prompt", "x")
	if got != (outcome{0, "a tale.\n", ""}) {
		t.Errorf("got %+v", got)
	}
}

func TestGenerateLogprobs(t *testing.T) {
	event := tokens(0, "a b", 7, 8)
	event.GetTokens().Logprobs = []*inferencev1.TokenLogprobs{
		{Logprob: -0.5, Text: []byte("a"), Top: []*inferencev1.TokenLogprob{{TokenId: 7, Logprob: -0.5, Text: []byte("a")}, {TokenId: 9, Logprob: float32(math.Inf(-1)), Text: []byte{0xf0, 0x9f}}}},
		{Logprob: -1.25},
	}
	router := &fakeRouter{generate: sends(accepted(), event, finished(2, ""))}
	got := run(t.Context(), "", nil, "generate", "--addr", router.start(t), "--prompt", "x", "--json", "--logprobs=2")
	want := `{"offset":0,"token_id":7,"text":"","logprobs":{"logprob":-0.5,"top":[{"token_id":7,"text":"a","logprob":-0.5},{"token_id":9,"text":"\ufffd\ufffd","logprob":-9999}]}}` + "\n" +
		`{"offset":1,"token_id":8,"text":"a b","logprobs":{"logprob":-1.25,"top":[]}}` + "\n"
	if !strings.HasPrefix(got.stdout, want) || got.status != 0 {
		t.Errorf("got %+v, want\n%s", got, want)
	}
}

func TestGenerateRefusesSampling(t *testing.T) {
	for _, c := range []struct {
		flag, says string
	}{
		{"--logit-bias=17", "17=2.5"},
		{"--logit-bias=17=x", "17=2.5"},
		{"--logit-bias=-1=2", "17=2.5"},
		{"--logit-bias=17=1,17=2", "token 17 is given twice"},
		{"--logprobs=21", "outside 0 to 20"},
		{"--logprobs=-1", "outside 0 to 20"},
		{"--top-k=-1", "outside 0 to"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--json", c.flag), 2, c.says)
		})
	}
	checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--logprobs=2"), 2, "--logprobs: text output cannot show")
	checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--regex=a", "--choice=b"), 2, "--choice: --regex is given too")
	checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--grammar=none.gbnf"), 2, "--grammar: open none.gbnf")
	checkFailure(t, run(t.Context(), "", nil, "generate", "--prompt=x", "--json-schema=none.json"), 2, "--json-schema: open none.json")
}

func TestGenerateRequest(t *testing.T) {
	plain := func() *inferencev1.GenerateRequest {
		return &inferencev1.GenerateRequest{
			Mode: inferencev1.Mode_MODE_AUTO, Sampling: &inferencev1.Sampling{},
			Input: &inferencev1.GenerateRequest_Prompt{Prompt: "x"},
		}
	}
	with := func(change func(*inferencev1.GenerateRequest)) *inferencev1.GenerateRequest {
		r := plain()
		change(r)
		return r
	}
	schema := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(schema, []byte(`{"type": "null"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name  string
		stdin string
		args  []string
		want  *inferencev1.GenerateRequest
	}{
		{"the model's defaults", "", []string{"--prompt=x"}, plain()},
		{"a seed alone", "", []string{"--prompt=x", "--seed=7"}, with(func(r *inferencev1.GenerateRequest) {
			r.Sampling.Seed = proto.Uint64(7)
		})},
		{"the likeliest tokens", "", []string{"--prompt=x", "--temperature=0"}, with(func(r *inferencev1.GenerateRequest) {
			r.Sampling.Temperature = proto.Float32(0)
		})},
		{"standard input to the byte", "x\n", nil, with(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_Prompt{Prompt: "x\n"}
		})},
		{"an empty prompt is the router's to refuse", "y", []string{"--prompt="}, with(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_Prompt{}
		})},
		{"token ids", "y", []string{"--token-ids=1, 2,3"}, with(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: []uint32{1, 2, 3}}}
		})},
		{"penalties", "", []string{"--prompt=x", "--repetition-penalty=1.25", "--presence-penalty=0", "--frequency-penalty=-0.5", "--logit-bias=17=2.5, 305=-100", "--logprobs=0", "--json"}, with(func(r *inferencev1.GenerateRequest) {
			r.Sampling.RepetitionPenalty, r.Sampling.PresencePenalty, r.Sampling.FrequencyPenalty = proto.Float32(1.25), proto.Float32(0), proto.Float32(-0.5)
			r.Sampling.LogitBias, r.Logprobs = map[uint32]float32{17: 2.5, 305: -100}, proto.Uint32(0)
		})},
		{"an object", "", []string{"--prompt=x", "--json-object"}, with(func(r *inferencev1.GenerateRequest) {
			r.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
		})},
		{"a schema", "", []string{"--prompt=x", "--json-schema=" + schema}, with(func(r *inferencev1.GenerateRequest) {
			r.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: `{"type": "null"}`}}
		})},
		{"an expression", "", []string{"--prompt=x", "--regex=[a-c],+"}, with(func(r *inferencev1.GenerateRequest) {
			r.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "[a-c],+"}}
		})},
		{"a grammar", "", []string{"--prompt=x", "--grammar=" + schema}, with(func(r *inferencev1.GenerateRequest) {
			r.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: `{"type": "null"}`}}
		})},
		{"a choice", "", []string{"--prompt=x", "--choice=yes,no way"}, with(func(r *inferencev1.GenerateRequest) {
			r.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"yes", "no way"}}}}
		})},
		{"everything", "", []string{
			"--prompt=x", "--max-tokens=9", "--temperature=0.5", "--top-p=1", "--top-k=0", "--min-p=0.25", "--seed=0",
			"--stop=a,b", "--stop=c", "--mode=disaggregated", "--model=fable", "--tenant=t", "--priority=-7",
			"--cache-salt=s", "--ignore-eos", "--no-special",
		}, &inferencev1.GenerateRequest{
			Model: "fable", Input: &inferencev1.GenerateRequest_Prompt{Prompt: "x"}, MaxTokens: proto.Uint32(9),
			Sampling: &inferencev1.Sampling{
				Temperature: proto.Float32(0.5), TopP: proto.Float32(1), TopK: proto.Uint32(0), MinP: proto.Float32(0.25), Seed: proto.Uint64(0),
			},
			Stop: []string{"a,b", "c"}, IgnoreEos: true, Mode: inferencev1.Mode_MODE_DISAGGREGATED, Tenant: "t",
			Priority: -7, CacheSalt: "s", NoSpecialTokens: true,
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got *inferencev1.GenerateRequest
			var ids []string
			router := &fakeRouter{generate: func(r *inferencev1.GenerateRequest, s stream) error {
				got, ids = r, metadata.ValueFromIncomingContext(s.Context(), api.HeaderRequestID)
				return s.Send(finished(0, ""))
			}}
			args := append([]string{"generate", "--request-id=mine", "--addr", router.start(t)}, c.args...)
			if o := run(t.Context(), c.stdin, nil, args...); o.status != 0 {
				t.Fatalf("%+v", o)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if !slices.Equal(ids, []string{"mine"}) {
				t.Errorf("request ids %q", ids)
			}
		})
	}
}

func TestGenerateEndsBadly(t *testing.T) {
	after := func(err error) func(*inferencev1.GenerateRequest, stream) error {
		return func(r *inferencev1.GenerateRequest, s stream) error {
			return first(sends(accepted(), tokens(0, "a", 7), tokens(1, "", 8))(r, s), err)
		}
	}
	cases := []struct {
		name     string
		generate func(*inferencev1.GenerateRequest, stream) error
		args     []string
		// line is in the message; code, reason, field and retry are the error's.
		line, code, reason, field string
		retry                     float64
		tokens                    int
	}{
		{"refused at once", func(*inferencev1.GenerateRequest, stream) error {
			return rpc.Error(codes.ResourceExhausted, "SLO", "too busy", 1500*time.Millisecond)
		}, nil, "too busy; try again in 1.5s or later", "RESOURCE_EXHAUSTED", "SLO", "", 1500, 0},
		{"another server", func(*inferencev1.GenerateRequest, stream) error {
			return status.Error(codes.Unimplemented, "unknown service tandem.inference.v1.Inference")
		}, nil, "serves others, such as operators or routers: pass the router's gRPC address", "UNIMPLEMENTED", "", "", 0, 0},
		{"bad field", func(*inferencev1.GenerateRequest, stream) error {
			return rpc.InvalidArgument("sampling.top_p", "7 is outside 0 to 1")
		}, nil, "sampling.top_p: 7 is outside", "INVALID_ARGUMENT", api.ReasonInvalidField, "sampling.top_p", 0, 0},
		{"bad flag", func(*inferencev1.GenerateRequest, stream) error {
			return rpc.InvalidArgument("sampling.top_p", "7 is outside 0 to 1")
		}, []string{"--top-p=7"}, "tandem: --top-p: 7 is outside 0 to 1: see 'tandem generate --help'", "INVALID_ARGUMENT", api.ReasonInvalidField, "sampling.top_p", 0, 0},
		{"no workers", func(*inferencev1.GenerateRequest, stream) error {
			return rpc.Error(codes.Unavailable, "NO_WORKERS", "no decode worker", time.Second)
		}, nil, "no decode worker", "UNAVAILABLE", "NO_WORKERS", "", 1000, 0},
		{"no workers, with an id", func(*inferencev1.GenerateRequest, stream) error {
			return rpc.Error(codes.Unavailable, "NO_WORKERS", "no decode worker", time.Second)
		}, []string{"--request-id=myid"}, "no decode worker", "UNAVAILABLE", "NO_WORKERS", "", 1000, 0},
		{"in the middle", after(rpc.Errorf(codes.DataLoss, "CHECKSUM", "a block is broken")), nil, "a block is broken", "DATA_LOSS", "CHECKSUM", "", 0, 2},
		{"no result", after(nil), nil, "ended the stream without a result", "INTERNAL", "INCOMPLETE_STREAM", "", 0, 2},
		{"out of time", func(_ *inferencev1.GenerateRequest, s stream) error {
			<-s.Context().Done()
			return s.Context().Err()
		}, []string{"--timeout=30ms"}, "not done within --timeout 30ms", "DEADLINE_EXCEEDED", "", "", 0, 0},
		{"mode", nil, []string{"--mode=both"}, "--mode: \"both\" is not a mode", "INVALID_ARGUMENT", api.ReasonInvalidField, "mode", 0, 0},
		{"mode in capitals of the protocol", nil, []string{"--mode=unspecified"}, "is not a mode", "INVALID_ARGUMENT", api.ReasonInvalidField, "mode", 0, 0},
		{"max tokens", nil, []string{"--max-tokens=-1"}, "--max-tokens: -1", "INVALID_ARGUMENT", api.ReasonInvalidField, "max_tokens", 0, 0},
		{"top k", nil, []string{"--top-k=99999999999"}, "--top-k: 99999999999 is outside", "INVALID_ARGUMENT", api.ReasonInvalidField, "sampling.top_k", 0, 0},
		{"priority", nil, []string{"--priority=101"}, "-100 to 100", "INVALID_ARGUMENT", api.ReasonInvalidField, "priority", 0, 0},
		{"token ids", nil, []string{"--token-ids=1,-2"}, "\"-2\" is not a token id", "INVALID_ARGUMENT", api.ReasonInvalidField, "", 0, 0},
		{"an empty token id", nil, []string{"--token-ids=1,,2"}, "--token-ids: \"\" is not a token id", "INVALID_ARGUMENT", api.ReasonInvalidField, "token_ids.ids[1]", 0, 0},
		{"not UTF-8", nil, []string{"--prompt=a\xff"}, "--prompt: is not UTF-8", "INVALID_ARGUMENT", api.ReasonInvalidField, "prompt", 0, 0},
		{"stop not UTF-8", nil, []string{"--stop=a", "--stop=\xff"}, "--stop: is not UTF-8", "INVALID_ARGUMENT", api.ReasonInvalidField, "stop[1]", 0, 0},
		{"request id", nil, []string{"--request-id=a b"}, "--request-id: ", "INVALID_ARGUMENT", api.ReasonInvalidField, "request_id", 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			addr := (&fakeRouter{generate: c.generate}).start(t)
			args := append([]string{"generate", "--json", "--addr", addr}, c.args...)
			if c.name == "token ids" {
				c.field = "token_ids.ids[1]"
			} else if c.name != "not UTF-8" && c.name != "an empty token id" {
				args = append(args, "--prompt=x")
			}
			got := run(t.Context(), "", nil, args...)
			status := 1
			if c.code == "INVALID_ARGUMENT" && c.args != nil {
				status = 2
			}
			checkFailure(t, got, status, c.line)
			if status == 2 { // there was no request
				if got.stdout != "" {
					t.Errorf("a result of a wrong command line: %s", got.stdout)
				}
				return
			}
			result := last(t, got.stdout)
			for key := range last(t, goldenResult) {
				if _, ok := result[key]; !ok {
					t.Errorf("the result lacks %q", key)
				}
			}
			failed, _ := result["error"].(map[string]any)
			want := map[string]any{"code": c.code, "reason": c.reason, "field": c.field, "retry_after_ms": c.retry, "message": failed["message"]}
			if diff := cmp.Diff(want, failed); diff != "" || result["finish_reason"] != "error" {
				t.Errorf("finish_reason %v, error (-want +got):\n%s", result["finish_reason"], diff)
			}
			id := "" // what the router called it, else what the caller did
			if c.tokens > 0 {
				id = "r1"
			}
			for _, arg := range c.args {
				if given, is := strings.CutPrefix(arg, "--request-id="); is {
					id = given
				}
			}
			if result["request_id"] != id {
				t.Errorf("request_id %q, want %q", result["request_id"], id)
			}
			if n := len(result["token_ids"].([]any)); n != c.tokens {
				t.Errorf("%d tokens, want %d", n, c.tokens)
			}
		})
	}
}

// Nobody types at /dev/null, and it has no prompt.
func TestNothingOnStandardInput(t *testing.T) {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer nothing.Close()
	var stderr strings.Builder
	status := commands.Run(t.Context(), commands.Process{Args: []string{"generate"}, Stdin: nothing, Stdout: io.Discard, Stderr: &stderr})
	checkFailure(t, outcome{status, "", stderr.String()}, 1, "prompt: standard input is empty: pass --prompt")
}

// More than the context holds is the fault of the flag, if there is one.
func TestMaxTokensBeyondTheContext(t *testing.T) {
	const asked = "This model's maximum context length is 2048 tokens: you requested 100003 tokens, 3 in the prompt and 100000 in the completion; " +
		"ask for at most 2045 in the completion, shorten the prompt, or "
	addr := (&fakeRouter{generate: func(*inferencev1.GenerateRequest, stream) error {
		return rpc.ContextLength("max_tokens", asked+"name no limit to get as many as fit")
	}}).start(t)
	got := run(t.Context(), "", nil, "generate", "--addr", addr, "--prompt=Once", "--max-tokens=100000")
	checkFailure(t, got, 1, "tandem: --max-tokens: "+asked+"leave --max-tokens out to get as many as fit\n")
}

func TestUnreachableRouter(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"generate", "--prompt=x"}, "cannot reach the router at 127.0.0.1:1: start it with 'tandem up', or pass --addr"},
		{[]string{"generate", "--prompt=x", "--addr=no-host.invalid:1"}, "cannot reach the router at no-host.invalid:1 (the name does not resolve): start it"},
		{[]string{"workers", "--control=no-host.invalid:1"}, "cannot reach a router at no-host.invalid:1 (the name does not resolve): start one"},
		{[]string{"generate", "--prompt=x", "--addr=127.0.0.1:1,127.0.0.1:2"}, "cannot reach the router at 127.0.0.1:1,127.0.0.1:2"},
		{[]string{"generate", "--prompt=x", "--addr=:1"}, "cannot reach the router at :1: start it"},
		{[]string{"workers"}, "cannot reach a router at 127.0.0.1:2: start one with 'tandem up', or pass --control"},
		{[]string{"workers", "--watch"}, "cannot reach a router at 127.0.0.1:2"},
		{[]string{"drain", "w"}, "cannot reach a router at 127.0.0.1:2"},
		{[]string{"explain", "r"}, "cannot reach a router at 127.0.0.1:2"},
		{[]string{"budget"}, "cannot reach a router at 127.0.0.1:2"},
	} {
		got := run(t.Context(), "", []string{"TANDEM_ADDR=127.0.0.1:1", "TANDEM_CONTROL=127.0.0.1:2"}, c.args...)
		checkFailure(t, got, 1, c.want)
		if got.stdout != "" {
			t.Errorf("%v prints %q", c.args, got.stdout)
		}
	}
}

// What a client is told that calls a router at its address for HTTP.
func TestRouterAtItsHTTPAddress(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	addr := server.Listener.Addr().String()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"generate", "--prompt=x"}, "pass the router's gRPC address (its --listen, by default 127.0.0.1:7070)"},
		{[]string{"chat"}, "pass the router's gRPC address"},
		{[]string{"workers"}, "pass --control with the router's address for operators (by default 127.0.0.1:7090 on"},
		{[]string{"drain", "w"}, "pass --control"},
		{[]string{"probe", "--timeout=20s", addr}, "ask http://" + addr + "/readyz"},
		{[]string{"bench", "serve", "--rate=1"}, "pass the router's gRPC address or, to measure an OpenAI-compatible server, --openai http://" + addr},
	} {
		got := run(t.Context(), "hello\n", []string{"TANDEM_ADDR=" + addr, "TANDEM_CONTROL=" + addr}, c.args...)
		checkFailure(t, got, 1, "the server at "+addr+" speaks HTTP, not gRPC: ")
		checkFailure(t, got, 1, c.want)
	}
}

// What listens there and is neither gRPC nor HTTP/1.1 is no router that is to be started.
func TestSomethingElseListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Write([]byte("220 mail.example ESMTP, what do you want of us?\r\n"))
				_, _ = io.Copy(io.Discard, conn) // until the client has gone
			}()
		}
	}()
	addr := l.Addr().String()
	for _, args := range [][]string{{"generate", "--prompt=x"}, {"workers"}} {
		got := run(t.Context(), "", []string{"TANDEM_ADDR=" + addr, "TANDEM_CONTROL=" + addr}, args...)
		checkFailure(t, got, 1, "what listens at "+addr+" does not speak gRPC: pass ")
	}
}

func TestPromptOnStandardInputIsBounded(t *testing.T) {
	got := run(t.Context(), strings.Repeat("x", 17<<20), nil, "generate", "--addr=127.0.0.1:1")
	checkFailure(t, got, 1, "prompt: standard input has more than")
}

// Ctrl-C ends the wait for a prompt that nobody types.
func TestCancelWhileReadingThePrompt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stdin, typist := io.Pipe()
	defer typist.Close()
	var stdout, stderr strings.Builder
	status := commands.Run(ctx, commands.Process{Args: []string{"generate", "--json"}, Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
	checkFailure(t, outcome{status, stdout.String(), stderr.String()}, 130, "cancelled")
	if result := last(t, stdout.String()); result["finish_reason"] != "cancelled" {
		t.Errorf("result %v", result)
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// last is the last line, decoded.
func last(t *testing.T, output string) map[string]any {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	var result map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		t.Fatalf("last line of %q: %v", output, err)
	}
	return result
}
