package router_test

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

func ids(tokens ...uint32) *inferencev1.GenerateRequest_TokenIds {
	return &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: tokens}}
}

func text(prompt string) *inferencev1.GenerateRequest_Prompt {
	return &inferencev1.GenerateRequest_Prompt{Prompt: prompt}
}

// Every bad request is refused at once with a status that names the field, and
// the mesh goes on serving.
func TestBadInput(t *testing.T) {
	sampling := func(change func(*inferencev1.Sampling)) func(*inferencev1.GenerateRequest) {
		return func(q *inferencev1.GenerateRequest) { change(q.GetSampling()) }
	}
	for _, test := range []struct {
		name   string
		change func(*inferencev1.GenerateRequest)
		field  string
		says   string
	}{
		{"no input", func(q *inferencev1.GenerateRequest) { q.Input = nil }, "prompt", "neither"},
		{"empty text", func(q *inferencev1.GenerateRequest) { q.Input = text("") }, "prompt", "empty"},
		{"no tokens", func(q *inferencev1.GenerateRequest) { q.Input = ids() }, "token_ids", "empty"},
		{"token out of range", func(q *inferencev1.GenerateRequest) { q.Input = ids(1, 2, 4096) }, "token_ids.ids[2]", "4096"},
		{"huge token", func(q *inferencev1.GenerateRequest) { q.Input = ids(math.MaxUint32) }, "token_ids.ids[0]", "vocabulary"},
		{"too many tokens", func(q *inferencev1.GenerateRequest) { q.Input = ids(slices.Repeat([]uint32{1}, window)...) }, "token_ids", "256 tokens"},
		{"text too long", func(q *inferencev1.GenerateRequest) { q.Input = text(strings.Repeat("dog ", window)) }, "prompt", "maximum context length is 256 tokens: the prompt has more than 255 tokens (1024 bytes), and one token has to fit behind it; shorten it to at most 255"},
		{"megabytes of text", func(q *inferencev1.GenerateRequest) { q.Input = text(strings.Repeat("Once upon a time. ", 100_000)) }, "prompt", "1800000 bytes"},
		{"max_tokens one over the context", func(q *inferencev1.GenerateRequest) { q.MaxTokens = proto.Uint32(window - 4 + 1) }, "max_tokens", "maximum context length is 256 tokens: you requested 257 tokens, 4 in the prompt and 253 in the completion"},
		{"max_tokens far over the context", func(q *inferencev1.GenerateRequest) { q.MaxTokens = proto.Uint32(1 << 30) }, "max_tokens", "ask for at most 252"},
		{"max_tokens 0", func(q *inferencev1.GenerateRequest) { q.MaxTokens = proto.Uint32(0) }, "max_tokens", "0 is outside"},
		{"max_tokens absurd", func(q *inferencev1.GenerateRequest) { q.MaxTokens = proto.Uint32(math.MaxUint32) }, "max_tokens", "outside"},
		{"temperature negative", sampling(func(s *inferencev1.Sampling) { s.Temperature = proto.Float32(-1) }), "sampling.temperature", "-1"},
		{"temperature absurd", sampling(func(s *inferencev1.Sampling) { s.Temperature = proto.Float32(1000) }), "sampling.temperature", "1000"},
		{"temperature NaN", sampling(func(s *inferencev1.Sampling) { s.Temperature = proto.Float32(float32(math.NaN())) }), "sampling.temperature", "NaN"},
		{"typical_p 0", sampling(func(s *inferencev1.Sampling) { s.TypicalP = proto.Float32(0) }), "sampling.typical_p", "above 0"},
		{"typical_p over 1", sampling(func(s *inferencev1.Sampling) { s.TypicalP = proto.Float32(1.5) }), "sampling.typical_p", "1.5"},
		{"min_tokens above max_tokens", func(q *inferencev1.GenerateRequest) { q.MaxTokens, q.MinTokens = proto.Uint32(3), 4 }, "min_tokens", "more than the 3"},
		{"min_tokens absurd", func(q *inferencev1.GenerateRequest) { q.MinTokens = math.MaxUint32 }, "min_tokens", "more than"},
		{"top_p over 1", sampling(func(s *inferencev1.Sampling) { s.TopP = proto.Float32(1.5) }), "sampling.top_p", "1.5"},
		{"min_p negative", sampling(func(s *inferencev1.Sampling) { s.MinP = proto.Float32(-.1) }), "sampling.min_p", "-0.1"},
		{"top_k absurd", sampling(func(s *inferencev1.Sampling) { s.TopK = proto.Uint32(math.MaxUint32) }), "sampling.top_k", "outside"},
		{"repetition penalty 0", sampling(func(s *inferencev1.Sampling) { s.RepetitionPenalty = proto.Float32(0) }), "sampling.repetition_penalty", "1 for none"},
		{"repetition penalty negative", sampling(func(s *inferencev1.Sampling) { s.RepetitionPenalty = proto.Float32(-1) }), "sampling.repetition_penalty", "-1"},
		{"repetition penalty absurd", sampling(func(s *inferencev1.Sampling) { s.RepetitionPenalty = proto.Float32(101) }), "sampling.repetition_penalty", "101"},
		{"presence penalty", sampling(func(s *inferencev1.Sampling) { s.PresencePenalty = proto.Float32(2.5) }), "sampling.presence_penalty", "2.5"},
		{"frequency penalty NaN", sampling(func(s *inferencev1.Sampling) { s.FrequencyPenalty = proto.Float32(float32(math.NaN())) }), "sampling.frequency_penalty", "NaN"},
		{"bias of no token", sampling(func(s *inferencev1.Sampling) { s.LogitBias = map[uint32]float32{4096: 1} }), "sampling.logit_bias", "token 4096"},
		{"bias absurd", sampling(func(s *inferencev1.Sampling) { s.LogitBias = map[uint32]float32{7: 100.5} }), "sampling.logit_bias", "100.5 for token 7"},
		{"biases many", sampling(func(s *inferencev1.Sampling) {
			s.LogitBias = map[uint32]float32{}
			for id := range uint32(1025) {
				s.LogitBias[id] = 1
			}
		}), "sampling.logit_bias", "1025"},
		{"logprobs", func(q *inferencev1.GenerateRequest) { q.Logprobs = proto.Uint32(21) }, "logprobs", "21"},
		{"stop empty", func(q *inferencev1.GenerateRequest) { q.Stop = []string{"a", ""} }, "stop[1]", "empty"},
		{"stop long", func(q *inferencev1.GenerateRequest) { q.Stop = []string{strings.Repeat("a", 257)} }, "stop[0]", "257"},
		{"stops many", func(q *inferencev1.GenerateRequest) { q.Stop = slices.Repeat([]string{"a"}, 17) }, "stop", "17"},
		{"stop token", func(q *inferencev1.GenerateRequest) { q.StopTokenIds = []uint32{1, 5000} }, "stop_token_ids[1]", "5000"},
		{"stop tokens many", func(q *inferencev1.GenerateRequest) { q.StopTokenIds = slices.Repeat([]uint32{1}, 65) }, "stop_token_ids", "65"},
		{"mode", func(q *inferencev1.GenerateRequest) { q.Mode = 99 }, "mode", "99"},
		{"priority high", func(q *inferencev1.GenerateRequest) { q.Priority = 101 }, "priority", "101"},
		{"priority low", func(q *inferencev1.GenerateRequest) { q.Priority = -101 }, "priority", "-101"},
		{"slo ttft", func(q *inferencev1.GenerateRequest) { q.Slo = &inferencev1.Slo{Ttft: durationpb.New(-1)} }, "slo.ttft", "negative"},
		{"slo class", func(q *inferencev1.GenerateRequest) { q.Slo = &inferencev1.Slo{Class: "fast"} }, "slo.class", "interactive, standard, batch"},
		{"slo class, long", func(q *inferencev1.GenerateRequest) { q.Slo = &inferencev1.Slo{Class: strings.Repeat("a", 1<<14)} }, "slo.class", `"` + strings.Repeat("a", 64) + `…"`},
		{"slo tpot", func(q *inferencev1.GenerateRequest) { q.Slo = &inferencev1.Slo{Tpot: durationpb.New(-1)} }, "slo.tpot", "negative"},
		{"slo invalid", func(q *inferencev1.GenerateRequest) {
			q.Slo = &inferencev1.Slo{Ttft: &durationpb.Duration{Seconds: math.MaxInt64}}
		}, "slo.ttft", "no valid"},
		{"resumable negative", func(q *inferencev1.GenerateRequest) { q.ResumableFor = durationpb.New(-time.Second) }, "resumable_for", "negative"},
		{"resumable long", func(q *inferencev1.GenerateRequest) { q.ResumableFor = durationpb.New(time.Hour) }, "resumable_for", "1h"},
		{"salt", func(q *inferencev1.GenerateRequest) { q.CacheSalt = strings.Repeat("s", 257) }, "cache_salt", "256"},
		{"tenant", func(q *inferencev1.GenerateRequest) { q.Tenant = strings.Repeat("t", 129) }, "tenant", "128"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
				q := ask(auto, 4)
				test.change(q)
				began := time.Now()
				r := m.generate(t.Context(), q)
				if status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != test.field || !strings.Contains(r.err.Error(), test.says) {
					t.Errorf("field %q, error %v", rpc.Field(r.err), r.err)
				}
				if time.Since(began) > 0 {
					t.Error("not refused at once")
				}
				if len(r.header) != 0 {
					t.Error("a refused request has headers")
				}
				for _, w := range m.workers {
					if len(w.Tasks()) != 0 {
						t.Error("a worker was asked")
					}
				}
				if r := m.generate(t.Context(), ask(auto, 4)); r.err != nil {
					t.Errorf("the next request: %v", r.err)
				}
			})
		})
	}
}

func TestUnknownModel(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		q := ask(auto, 4)
		q.Model = "no-such-model"
		if r := m.generate(t.Context(), q); status.Code(r.err) != codes.NotFound || !strings.Contains(r.err.Error(), "fable") {
			t.Errorf("error %v", r.err)
		}
	})
}

func TestInvalidUTF8(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		q := ask(auto, 4)
		q.Input = text("a?")
		stream, err := m.inference.Generate(t.Context(), q, grpc.ForceCodecV2(careless{}))
		if err != nil {
			t.Fatal(err)
		}
		if r := m.collect(stream, 0); status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != "prompt" {
			t.Errorf("field %q, error %v", rpc.Field(r.err), r.err)
		}
	})
}

// careless writes 0xff for every "?" of a message, as clients in languages that
// do not check their strings may.
type careless struct{}

func (careless) Name() string { return "proto" }

func (careless) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(bytes.ReplaceAll(data, []byte("?"), []byte{0xff}))}, err
}

func (careless) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

func TestTextPromptAndDefaults(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		d := m.start(nil, decodeRecord("d1"))[0]
		r := m.generate(t.Context(), &inferencev1.GenerateRequest{Input: text("Once upon a time")})
		if r.err != nil || r.text != story {
			t.Fatalf("text %q, error %v", r.text, r.err)
		}
		task := d.Tasks()[0]
		s := task.GetSampling()
		if s.Seed == nil || !proto.Equal(protocolDefaults(s.GetSeed()), s) || task.Logprobs != nil {
			t.Errorf("sampling %v", s)
		}
		if s.GetSeed() != r.accepted.GetSeed() || task.GetTokenIds()[0] != 4093 || int(r.accepted.GetPromptTokens()) != len(task.GetTokenIds()) {
			t.Errorf("accepted %v, task %v", r.accepted, task)
		}
		e := task.GetEnvelope()
		if e.GetTenant() != "default" || e.GetMode() != auto || e.GetRequestId() != r.accepted.GetRequestId() {
			t.Errorf("envelope %v", e)
		}
		if !slices.Equal(task.GetStopTokenIds(), []uint32{eos}) {
			t.Errorf("stop tokens %v", task.GetStopTokenIds())
		}
		q := ask(agg, 4)
		q.IgnoreEos, q.MaxTokens = true, proto.Uint32(60)
		if r := m.generate(t.Context(), q); r.err != nil || len(r.tokens) != 60 {
			t.Errorf("ignore_eos: %d tokens, %v", len(r.tokens), r.err)
		}
	})
}
