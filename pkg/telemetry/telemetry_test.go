package telemetry_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

func TestNewLogger(t *testing.T) {
	for _, test := range []struct{ format, level, want, unwanted string }{
		{"", "", "level=INFO msg=hello worker=w", "quiet"},
		{"text", "warn", "", "hello"},
		{"json", "debug", `"msg":"hello","worker":"w"`, ""},
		{"JSON", "DEBUG", `"msg":"quiet"`, ""},
	} {
		var output bytes.Buffer
		logger, err := telemetry.NewLogger(&output, test.format, test.level)
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("hello", "worker", "w")
		logger.Debug("quiet")
		if !strings.Contains(output.String(), test.want) || test.unwanted != "" && strings.Contains(output.String(), test.unwanted) {
			t.Errorf("%s %s: got %q", test.format, test.level, output.String())
		}
	}
	for _, test := range []struct{ format, level string }{{"xml", ""}, {"", "loud"}} {
		if _, err := telemetry.NewLogger(&bytes.Buffer{}, test.format, test.level); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%v: the error %v does not say what to use", test, err)
		}
	}
}

func TestHandler(t *testing.T) {
	registry := telemetry.NewRegistry()
	handler := telemetry.Handler(registry, registry)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK {
		t.Fatalf("status %d", recorder.Code)
	}
	for _, want := range []string{"tandem_build_info{", "go_goroutines", "go_gc_pauses_seconds_bucket", "process_resident_memory_bytes", "go_sched_latencies_seconds_bucket"} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("there is no %s", want)
		}
	}
}

func TestBuildIsOneLine(t *testing.T) {
	build := telemetry.Build{Version: "v1.2.3", Revision: "0123456789abcdef-dirty", Go: "go1.26.8"}
	if got, want := build.String(), "v1.2.3 (0123456789ab-dirty) go1.26.8"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if build := telemetry.ReadBuild(); build.Version == "" || build.Go == "" {
		t.Errorf("got %+v", build)
	}
}
