package preprocess_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/grammar/grammartest"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// While too many new forms wait to be checked, further ones are refused, to be tried again; requests
// without a form are not.
func TestTooManyForms(t *testing.T) {
	tok := withSpecial(t)
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	formOf := func(expression string) *inferencev1.GenerateRequest {
		q := &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Prompt{Prompt: "a"}}
		if expression != "" {
			q.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: expression}}
		}
		return q
	}
	plan := func(expression string) error {
		_, err := models.Plan(t.Context(), time.Now(), formOf(expression), nil)
		return err
	}
	if err := plan("known"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := models.Plan(ctx, time.Now(), formOf("of a client that is gone"), nil); rpc.Reason(err) != api.ReasonClientGone {
		t.Errorf("without a client: %v", err)
	}
	release := grammartest.Fill(t, models.Grammars())
	err = plan("new")
	if wait, told := rpc.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != api.ReasonQueueFull || !told || wait <= 0 {
		t.Errorf("a new form: %v", err)
	}
	if err := plan(""); err != nil {
		t.Errorf("without a form: %v", err)
	}
	release()
	for _, expression := range []string{"new", "known"} {
		if err := plan(expression); err != nil {
			t.Errorf("%s, afterwards: %v", expression, err)
		}
	}
}

// Whose share of the places a new form takes is said by the credential, not by the request.
func TestFormsCountForWhoCalls(t *testing.T) {
	tok := withSpecial(t)
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	grammartest.FillBy(t, models.Grammars(), "one")
	for caller, others := range map[string]string{"one": "two", "two": "one"} {
		if caller == "two" && runtime.GOMAXPROCS(0) == 1 {
			continue // the only place is taken
		}
		ctx := auth.With(t.Context(), &auth.Principal{Tenant: caller}, "")
		p, err := models.Plan(ctx, time.Now(), &inferencev1.GenerateRequest{
			Tenant: others, Input: &inferencev1.GenerateRequest_Prompt{Prompt: "a"},
			StructuredOutput: &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "of " + caller}},
		}, nil)
		if busy := status.Code(err) == codes.ResourceExhausted; busy != (caller == "one") {
			t.Errorf("a form of %q in the name of %q: %v", caller, others, err)
		}
		if err == nil && p.Envelope.GetTenant() != caller {
			t.Errorf("a request of %q is that of %q", caller, p.Envelope.GetTenant())
		}
	}
}

// What cannot be ended is refused in words that name no field of another API.
func TestFormThatCannotEnd(t *testing.T) {
	tok := withSpecial(t)
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_, err = models.Plan(t.Context(), time.Now(), &inferencev1.GenerateRequest{
		Input: &inferencev1.GenerateRequest_Prompt{Prompt: "a"}, IgnoreEos: true,
		StructuredOutput: &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}},
	}, nil)
	if rpc.Field(err) != "ignore_eos" || !strings.Contains(err.Error(), "with an output constraint:") {
		t.Errorf("error %v", err)
	}
}
