package integration_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Bad input gets a typed status that names the field, at once, and the mesh goes
// on serving.
func TestBadInput(t *testing.T) { badInput(t, clustertest.Start(t, nil).Client) }

func badInput(t *testing.T, m *clustertest.Client) {
	base := func(change func(*inferencev1.GenerateRequest)) *inferencev1.GenerateRequest {
		r := request("Once upon a time", 4, 0, inferencev1.Mode_MODE_AUTO)
		change(r)
		return r
	}
	ids := func(ids ...uint32) *inferencev1.GenerateRequest_TokenIds {
		return &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}}
	}
	for name, c := range map[string]struct {
		request *inferencev1.GenerateRequest
		code    codes.Code
		field   string
	}{
		"no prompt":               {base(func(r *inferencev1.GenerateRequest) { r.Input = nil }), codes.InvalidArgument, "prompt"},
		"empty prompt":            {base(func(r *inferencev1.GenerateRequest) { r.Input = &inferencev1.GenerateRequest_Prompt{} }), codes.InvalidArgument, "prompt"},
		"no token ids":            {base(func(r *inferencev1.GenerateRequest) { r.Input = ids() }), codes.InvalidArgument, "token_ids"},
		"token id out of range":   {base(func(r *inferencev1.GenerateRequest) { r.Input = ids(1, 4096) }), codes.InvalidArgument, "token_ids"},
		"huge token id":           {base(func(r *inferencev1.GenerateRequest) { r.Input = ids(math.MaxUint32) }), codes.InvalidArgument, "token_ids"},
		"prompt over the context": {base(func(r *inferencev1.GenerateRequest) { r.Input = ids(make([]uint32, 2048)...) }), codes.InvalidArgument, "token_ids"},
		"text over the context": {base(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("king ", 5000)}
		}), codes.InvalidArgument, "prompt"},
		"100 MB prompt": {base(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("k", 100_000_000)}
		}), codes.ResourceExhausted, ""}, // by its length: to name the field, all of it would have to come
		"9 MB prompt": {base(func(r *inferencev1.GenerateRequest) {
			r.Input = &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("k", 9_000_000)}
		}), codes.InvalidArgument, "prompt"},
		"unknown model":           {base(func(r *inferencev1.GenerateRequest) { r.Model = "nobody" }), codes.NotFound, ""},
		"no tokens wanted":        {base(func(r *inferencev1.GenerateRequest) { r.MaxTokens = proto.Uint32(0) }), codes.InvalidArgument, "max_tokens"},
		"negative temperature":    {base(func(r *inferencev1.GenerateRequest) { r.Sampling.Temperature = proto.Float32(-1) }), codes.InvalidArgument, "temperature"},
		"temperature is nan":      {base(func(r *inferencev1.GenerateRequest) { r.Sampling.Temperature = proto.Float32(float32(math.NaN())) }), codes.InvalidArgument, "temperature"},
		"top_p over 1":            {base(func(r *inferencev1.GenerateRequest) { r.Sampling.TopP = proto.Float32(1.1) }), codes.InvalidArgument, "top_p"},
		"typical_p 0":             {base(func(r *inferencev1.GenerateRequest) { r.Sampling.TypicalP = proto.Float32(0) }), codes.InvalidArgument, "typical_p"},
		"negative min_p":          {base(func(r *inferencev1.GenerateRequest) { r.Sampling.MinP = proto.Float32(-0.5) }), codes.InvalidArgument, "min_p"},
		"absurd top_k":            {base(func(r *inferencev1.GenerateRequest) { r.Sampling.TopK = proto.Uint32(math.MaxUint32) }), codes.InvalidArgument, "top_k"},
		"empty stop text":         {base(func(r *inferencev1.GenerateRequest) { r.Stop = []string{""} }), codes.InvalidArgument, "stop"},
		"too many stop texts":     {base(func(r *inferencev1.GenerateRequest) { r.Stop = strings.Split(strings.Repeat("x", 17), "") }), codes.InvalidArgument, "stop"},
		"stop token out of range": {base(func(r *inferencev1.GenerateRequest) { r.StopTokenIds = []uint32{9999} }), codes.InvalidArgument, "stop_token_ids"},
		"absurd priority":         {base(func(r *inferencev1.GenerateRequest) { r.Priority = 1000 }), codes.InvalidArgument, "priority"},
		"unknown mode":            {base(func(r *inferencev1.GenerateRequest) { r.Mode = 77 }), codes.InvalidArgument, "mode"},
		"negative slo": {base(func(r *inferencev1.GenerateRequest) {
			r.Slo = &inferencev1.Slo{Ttft: durationpb.New(-time.Second)}
		}), codes.InvalidArgument, "slo"},
		"resumable for a day": {base(func(r *inferencev1.GenerateRequest) { r.ResumableFor = durationpb.New(24 * time.Hour) }), codes.InvalidArgument, "resumable_for"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			_, err := m.Generate(ctx, c.request)
			if status.Code(err) != c.code {
				t.Fatalf("status %v, want %v", err, c.code)
			}
			if field := rpc.Field(err); !strings.Contains(field, c.field) {
				t.Errorf("field %q, want %q: %v", field, c.field, err)
			}
		})
	}
	t.Run("invalid UTF-8", func(t *testing.T) { badUTF8(t, m) })
	if r := generate(t, m, request("Once upon a time", 4, 0, disaggregated)); len(r.Tokens) != 4 {
		t.Errorf("afterwards: %d tokens of 4", len(r.Tokens))
	}
	m.AwaitIdle(t)
}

// badUTF8 sends what no protobuf library would: a string that is not UTF-8.
func badUTF8(t *testing.T, m *clustertest.Client) {
	for method, request := range map[string]proto.Message{
		"Generate": &inferencev1.GenerateRequest{}, "Tokenize": &inferencev1.TokenizeRequest{},
	} {
		raw := protowire.AppendTag(nil, 2, protowire.BytesType)
		raw = protowire.AppendBytes(raw, []byte("Once \xff"))
		// Unknown fields are written as they are: the message on the wire is raw.
		request.ProtoReflect().SetUnknown(raw)
		var err error
		switch r := request.(type) {
		case *inferencev1.GenerateRequest:
			_, err = m.Generate(t.Context(), r)
		case *inferencev1.TokenizeRequest:
			_, err = m.Inference.Tokenize(t.Context(), r)
		}
		want := map[string]string{"Generate": "prompt", "Tokenize": "text"}[method]
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(rpc.Field(err), want) {
			t.Errorf("%s: %v, field %q, want %q", method, err, rpc.Field(err), want)
		}
	}
}
