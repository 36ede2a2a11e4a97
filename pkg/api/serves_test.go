package api_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func TestServes(t *testing.T) {
	serving, draining := controlv1.WorkerState_WORKER_STATE_SERVING, controlv1.WorkerState_WORKER_STATE_DRAINING
	for _, test := range []struct {
		connected bool
		excluded  string
		state     controlv1.WorkerState
		want      bool
	}{
		{true, "", serving, true},
		{false, "", serving, false},
		{true, "its step times are wrong", serving, false},
		{true, "", draining, false},
	} {
		view := &controlv1.WorkerView{Connected: test.connected, Excluded: test.excluded, Record: &controlv1.WorkerRecord{State: test.state}}
		if got := api.Serves(view); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
