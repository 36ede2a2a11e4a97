package processes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

func plan() processes.Plan {
	return processes.Plan{
		Prefill: 1, Decode: 1, StartTimeout: time.Minute,
		Arguments: []string{"--engine", "simulated", "--simulated-base-ms", "1"},
	}
}

func TestAMeshServesAndEnds(t *testing.T) {
	benchtest.Children(t)
	mesh, err := processes.Start(t.Context(), plan())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(mesh.Address, rpc.ClientConfig{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	maxTokens := uint32(3)
	stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: []uint32{5, 6, 7}}},
		MaxTokens: &maxTokens, Mode: inferencev1.Mode_MODE_DISAGGREGATED,
	})
	var last *inferencev1.GenerateEvent
	for err == nil {
		var event *inferencev1.GenerateEvent
		if event, err = stream.Recv(); err == nil {
			last = event
		}
	}
	if route := last.GetFinished().GetRoute(); route.GetPrefill() != "prefill-1" || route.GetDecode() != "decode-1" {
		t.Errorf("served by %v, the stream ended with %v", route, err)
	}
	_ = conn.Close()
	if used := mesh.CPUSeconds(); len(used) != 3 || used["router-1"] <= 0 {
		t.Errorf("CPU seconds by part: %v", used)
	}
	if err := mesh.Failed(); err != nil {
		t.Error(err)
	}
	if err := mesh.Stop(); err != nil {
		t.Error(err)
	}
}

func TestAPartThatCannotStartIsNamed(t *testing.T) {
	benchtest.Children(t)
	p := plan()
	p.Worker = []string{"--max-batch-tokens", "0"}
	_, err := processes.Start(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "prefill-1 ended before it was ready") || !strings.Contains(err.Error(), "--max-batch-tokens") {
		t.Errorf("the error is %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	benchtest.Children(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := processes.Start(ctx, plan()); err == nil {
		t.Error("started although asked to stop")
	}
}
