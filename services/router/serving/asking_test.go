package serving_test

import (
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// A request that goes on elsewhere has tokens that no worker holds for it: what holds its prompt is a hint
// until then.
func TestHolderIsAHintForThePromptAlone(t *testing.T) {
	holder, prompt := routing.Ref{ID: "d1", Epoch: 1}, []int32{1, 2, 3}
	if got := serving.Wanted(holder, prompt, nil); got.Holder != holder {
		t.Errorf("without a token: %+v", got.Holder)
	}
	if got := serving.Wanted(holder, prompt, []int32{4}); got.Holder != (routing.Ref{}) || got.Tokens != 4 {
		t.Errorf("after a token: %+v", got)
	}
}

// A decision that comes when the request has been given up was sent to no worker.
func TestDecisionAfterAnAbort(t *testing.T) {
	tok, err := tokenizer.Open("../../../models/fable")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		record, sent, late, err := serving.DecideAfterAbort(tok, &controlv1.Decision{Mode: inferencev1.Mode_MODE_AGGREGATED})
		if err != nil || len(record.GetDecisions()) != 0 || record.GetStatus() != "DEADLINE_EXCEEDED" || sent != 0 {
			t.Errorf("%v are counted, %v, %v", sent, record, err)
		}
		if late != 0 {
			t.Errorf("the log has %d events after the request's end", late)
		}
	})
}
