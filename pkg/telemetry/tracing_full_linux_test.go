package telemetry_test

import (
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// What did not fit on the disk as a whole does not spoil what comes once there is room again.
func TestTraceFileOnAFullDisk(t *testing.T) {
	name := filepath.Join(t.TempDir(), "traces.jsonl")
	export := func() error {
		tracing, err := telemetry.NewTracing(telemetry.TracingConfig{File: name, FileBytes: 1 << 20}, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, span := tracing.Tracer("tandem-router", "router-1").Start(t.Context(), "work", trace.WithAttributes(attribute.String("text", strings.Repeat("x", 2000))))
		span.End()
		return tracing.Close(t.Context())
	}
	if err := export(); err != nil {
		t.Fatal(err)
	}
	_, bytes := lines(t, name)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	full := before
	full.Cur = uint64(bytes) + 1000
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	_ = export() // who traces is not told that a span was lost
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if _, after := lines(t, name); after != bytes {
		t.Errorf("%d bytes, and %d after what did not fit", bytes, after)
	}
	if err := export(); err != nil {
		t.Fatal(err)
	}
	if got, _ := lines(t, name); len(got) != 2 {
		t.Errorf("%d lines, want those of two exports", len(got))
	}
}
