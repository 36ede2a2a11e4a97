package serving_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tandem-serving/tandem/services/router/serving"
)

func TestCountingATokenAllocatesNothing(t *testing.T) {
	count, err := serving.TokenCounter(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	count(now.Add(time.Millisecond), now)
	if n := testing.AllocsPerRun(1000, func() { count(now.Add(time.Millisecond), now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCountToken(b *testing.B) {
	count, err := serving.TokenCounter(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			count(now.Add(time.Millisecond), now)
		}
	})
}

// A request that is not sampled pays for the question alone.
func TestUnsampledCostsNothing(t *testing.T) {
	tracer := sdktrace.NewTracerProvider().Tracer("test")
	ctx := t.Context()
	for name, tracing := range map[string]serving.Tracing{"off": {}, "share of 0": {Tracer: tracer}} {
		if n := testing.AllocsPerRun(100, func() {
			if serving.Traces(ctx, tracing) {
				t.Error("it is traced")
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if !serving.Traces(ctx, serving.Tracing{Tracer: tracer, Share: 1}) {
		t.Error("at a share of 1 it is not traced")
	}
}
