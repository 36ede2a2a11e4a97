package preprocess_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// FuzzPlan has any request over gRPC, with its forms, tools and conversations, be planned or refused
// for a field.
func FuzzPlan(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"a","maxTokens":1,"stop":["b"],"stopTokenIds":[1],"minTokens":1,"logprobs":2,"promptLogprobs":0}`,
		`{"tokenIds":{"ids":[1,2]},"sampling":{"temperature":2,"topP":0.5,"topK":3,"logitBias":{"1":-1}},"resumableFor":"5s","slo":{"class":"batch","ttft":"1s"}}`,
		`{"prompt":"a","structuredOutput":{"jsonSchema":"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"}}`,
		`{"prompt":"a","structuredOutput":{"regex":"(a|b)+[^c]{2,3}"}}`,
		`{"prompt":"a","structuredOutput":{"grammar":"root ::= \"a\" root | [b-c]"}}`,
		`{"prompt":"a","structuredOutput":{"choice":{"texts":["a","b"]}}}`,
		`{"prompt":"a","structuredOutput":{"structuralTags":{"triggers":["<f"],"tags":[{"begin":"<f>","end":"</f>","jsonSchema":"{}"}]}}}`,
		`{"conversation":{"messages":[{"role":"user","content":"a"},{"role":"assistant","toolCalls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}],"toolsJson":["{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}"],"toolChoice":{"required":true}}}`,
	} {
		var q inferencev1.GenerateRequest
		if err := protojson.Unmarshal([]byte(seed), &q); err != nil {
			f.Fatal(seed, err)
		}
		encoded, err := proto.Marshal(&q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	tok, err := tokenizer.Open("../../../models/fable")
	if err != nil {
		f.Fatal(err)
	}
	template, err := chat.Parse("t", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# <tool_call> #}", nil)
	if err != nil {
		f.Fatal(err)
	}
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var q inferencev1.GenerateRequest
		if proto.Unmarshal(encoded, &q) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p, err := models.Plan(ctx, time.Now(), &q, nil)
		switch status.Code(err) {
		case codes.OK:
			if len(p.Tokens) == 0 || p.MaxTokens < 1 || len(p.Tokens)+p.MaxTokens > 1000 || p.MinTokens > p.MaxTokens {
				t.Errorf("%d tokens of prompt, %d to %d to generate", len(p.Tokens), p.MinTokens, p.MaxTokens)
			}
		case codes.InvalidArgument, codes.NotFound, codes.Unimplemented:
		default:
			t.Error(err)
		}
	})
}
