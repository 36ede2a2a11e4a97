package serving_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/routing"
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
