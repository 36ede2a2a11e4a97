package workerdriver_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/grammar/grammartest"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// A worker for which too many new forms wait refuses further ones, to be tried again.
func TestTooManyForms(t *testing.T) {
	vocabulary, err := grammar.NewVocabulary(8, func(id int32) []byte { return []byte{'a' + byte(id)} })
	if err != nil {
		t.Fatal(err)
	}
	cache := grammar.NewCache(vocabulary)
	accept := func() error {
		_, err := workerdriver.Accept(t.Context(), &workerv1.DecodeRequest{WorkerEpoch: 1, Task: &workerv1.Task{
			TokenIds: []uint32{1}, MaxTokens: 2, Envelope: &inferencev1.Envelope{RequestId: "r"},
			StructuredOutput: &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "[ab]+"}},
		}}, 1, model.Spec{Name: "m", VocabSize: 8, ContextTokens: 100, EOS: []int32{7}}, func() (*grammar.Cache, error) { return cache, nil })
		return err
	}
	release := grammartest.Fill(t, cache)
	err = accept()
	if wait, told := rpc.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != api.ReasonQueueFull || !told || wait <= 0 {
		t.Errorf("a new form: %v", err)
	}
	release()
	if err := accept(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
