package telemetry_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

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

// What could be gathered is served even if something could not.
func TestHandlerServesTheRest(t *testing.T) {
	registry := telemetry.NewRegistry()
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := registry.Gather()
		return families, errors.Join(err, errors.New("one collector failed"))
	})
	recorder := httptest.NewRecorder()
	telemetry.Handler(registry, broken).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), "tandem_build_info{") {
		t.Errorf("status %d: %s", recorder.Code, recorder.Body)
	}
}

func TestBuildOf(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	stamp := func(version string, settings ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return info
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want telemetry.Build
	}{
		"go run":             {stamp("(devel)"), telemetry.Build{Version: "devel"}},
		"an installed one":   {stamp("v1.2.3"), telemetry.Build{Version: "v1.2.3"}},
		"a clone":            {stamp("(devel)", "vcs.revision", revision, "vcs.time", "2026-11-24T00:24:12Z", "vcs.modified", "false"), telemetry.Build{Version: "v0.0.0-20261124002412-0123456789ab", Revision: revision}},
		"a changed clone":    {stamp("(devel)", "vcs.revision", revision, "vcs.time", "2026-11-24T01:24:12+01:00", "vcs.modified", "true"), telemetry.Build{Version: "v0.0.0-20261124002412-0123456789ab+dirty", Revision: revision + "-dirty"}},
		"a time that is bad": {stamp("", "vcs.revision", revision, "vcs.time", "yesterday"), telemetry.Build{Version: "devel", Revision: revision}},
	} {
		c.want.Go = "go1.26.8"
		if got := telemetry.BuildOf(c.info); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
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
