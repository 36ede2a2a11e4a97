package api_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tandem-serving/tandem/pkg/api"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func TestStages(t *testing.T) {
	var names []string
	timings, want := &inferencev1.Timings{}, [api.NumStages]time.Duration{}
	for s := range api.NumStages {
		names = append(names, s.String())
		field := timings.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(s.String() + "_ns"))
		timings.ProtoReflect().Set(field, protoreflect.ValueOfInt64(int64(s)+1))
		want[s] = time.Duration(s) + 1
	}
	if !slices.Equal(names, []string{"tokenize", "retried", "queue", "decide", "reserve", "prefill", "transfer_exposed", "decode"}) {
		t.Errorf("the stages are %q", names)
	}
	if got := api.StagesOf(timings); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := api.Stage(-1).String() + ", " + api.NumStages.String(); got != "stage -1, stage 8" {
		t.Errorf("got %q", got)
	}
}
