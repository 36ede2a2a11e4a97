package mesh_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// Profiles are shown to who has the token for metrics, and the command line to nobody.
func TestPprof(t *testing.T) {
	const token = "0123456789abcdef"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	runClosed(t, nil, func(o *mesh.UpOptions) {
		o.Metrics, o.MetricsTokenFile, o.MetricsPprof = "127.0.0.1:0", file, true
	}, func(m *closedMesh) {
		check := func(path, token string, want int, part string) {
			m.Helper()
			request, err := http.NewRequestWithContext(m.Context(), http.MethodGet, "http://"+m.up.Metrics+path, nil)
			if err != nil {
				m.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token)
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				m.Fatal(err)
			}
			defer answer.Body.Close()
			if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != want || !strings.Contains(string(text), part) {
				m.Errorf("%s: %d with %d bytes, %v; want %d with %q", path, answer.StatusCode, len(text), err, want, part)
			}
		}
		check("/debug/pprof/", "", http.StatusUnauthorized, "token")
		check("/debug/pprof/", token, http.StatusOK, "goroutine")
		check("/debug/pprof/goroutine?debug=1", token, http.StatusOK, "goroutine profile: total")
		check("/debug/pprof/cmdline", token, http.StatusNotFound, "")
	})
}

func TestPprofIsNotForEverybody(t *testing.T) {
	for metrics, want := range map[string]string{
		"":               "--metrics-pprof: profiles are served on --metrics",
		"0.0.0.0:0":      "--metrics-pprof: whoever takes profiles",
		"127.0.0.1:9090": "",
	} {
		o := upOptions(t)
		o.Metrics, o.MetricsPprof = metrics, true
		if err := o.Validate(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("--metrics %q: %v, want %q", metrics, err, want)
		}
	}
}
