package mesh_test

import (
	"context"
	"errors"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

func TestTraceOptions(t *testing.T) {
	for _, c := range []struct {
		flag   string
		change func(*telemetry.TracingConfig)
	}{
		{"--trace-sample", func(o *telemetry.TracingConfig) { o.Share = 1.01 }},
		{"--trace-sample", func(o *telemetry.TracingConfig) { o.Share = math.NaN() }},
		{"--trace-endpoint", func(o *telemetry.TracingConfig) { o.Endpoint = "collector" }},
		{"--trace-file-size", func(o *telemetry.TracingConfig) { o.File, o.FileBytes = "x", 5 }},
	} {
		o := upOptions(t)
		c.change(&o.Trace)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.flag+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("want an error of %s, got %v", c.flag, err)
		}
	}
	o := upOptions(t)
	o.Trace.File = filepath.Join(t.TempDir(), "no", "folder")
	if err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil); err == nil || !strings.Contains(err.Error(), "--trace-file: ") {
		t.Errorf("a trace file that cannot be made: %v", err)
	}
}

// What is wrong in the environment is called by its name there.
func TestTraceEndpointOfTheEnvironment(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "collector")
			err := mesh.Run(t.Context(), upOptions(t), quiet, prometheus.NewRegistry(), neverLoads(t), nil)
			if err == nil || !strings.Contains(err.Error(), "environment variable "+name+": ") || strings.Contains(err.Error(), "--trace") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A mesh whose collector is away serves as ever, and stops.
func TestMeshWithoutItsCollector(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Trace.Endpoint, o.Trace.Share = "127.0.0.1:1", 1
	served := make(chan error, 1)
	err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		go func() {
			defer cancel()
			served <- generateSome(ctx, up.Address)
		}()
	})
	if err != nil {
		t.Errorf("it ended with %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("a request: %v", err)
	}
}

func generateSome(ctx context.Context, address string) error {
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{
		Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}, MaxTokens: new(uint32(5)),
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
