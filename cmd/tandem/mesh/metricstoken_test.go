package mesh_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// Metrics are shown to who has the token alone, also after that was replaced; probes need none.
func TestMetricsToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "0123456789abcdef", "fedcba9876543210"
	write(first)
	runClosed(t, nil, func(o *mesh.UpOptions) { o.Metrics, o.MetricsTokenFile = "127.0.0.1:0", file }, func(m *closedMesh) {
		get := func(path, credential string) int {
			request, err := http.NewRequestWithContext(m.Context(), http.MethodGet, "http://"+m.up.Metrics+path, nil)
			if err != nil {
				m.Fatal(err)
			}
			if credential != "" {
				request.Header.Set("Authorization", credential)
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				m.Fatal(err)
			}
			_ = answer.Body.Close()
			return answer.StatusCode
		}
		check := func(path, credential string, want int) {
			m.Helper()
			if got := get(path, credential); got != want {
				m.Errorf("%s with %q: %d, want %d", path, credential, got, want)
			}
		}
		check("/metrics", "", http.StatusUnauthorized)
		check("/metrics", "Bearer ", http.StatusUnauthorized)
		check("/metrics", "Bearer "+m.up.FirstKey, http.StatusUnauthorized)
		check("/metrics", first, http.StatusUnauthorized)
		check("/metrics", "Bearer "+first, http.StatusOK)
		check("/readyz", "", http.StatusOK)
		check("/healthz", "", http.StatusOK)
		write(second)
		check("/metrics", "Bearer "+first, http.StatusUnauthorized)
		check("/metrics", "Bearer "+second, http.StatusOK)
		write("")
		check("/metrics", "Bearer ", http.StatusServiceUnavailable)
	})
}

func TestMetricsTokenHasToBeThere(t *testing.T) {
	short := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(short, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(good, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	const at = "127.0.0.1:0"
	for _, c := range []struct {
		metrics, http, file string
		taken               bool
	}{
		{at, "", short, false},
		{at, "", "/nowhere", false},
		{"", "", good, false},
		{"", at, short, false},
		{at, "", good, true},
		{"", at, good, true},
	} {
		o := upOptions(t)
		o.Metrics, o.HTTP, o.MetricsTokenFile = c.metrics, c.http, c.file
		if err := o.Validate(); (err == nil) != c.taken || err != nil && !strings.HasPrefix(err.Error(), "--metrics-token-file: ") {
			t.Errorf("--metrics %q, --http %q, the file %s: %v", c.metrics, c.http, c.file, err)
		}
	}
}

// Who lets other machines read the metrics without a token is told so.
func TestMetricsForAllAreWarnedOf(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		metrics, file string
		warned        int
	}{{"0.0.0.0:0", "", 1}, {":0", "", 1}, {"127.0.0.1:0", "", 0}, {"", "", 0}, {"0.0.0.0:0", token, 0}} {
		o := upOptions(t)
		o.Metrics, o.MetricsTokenFile, o.Model = c.metrics, c.file, "/nope" // which ends it
		var log bytes.Buffer
		err := mesh.Run(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), neverLoads(t), nil)
		if err == nil || strings.Count(log.String(), "pass --metrics-token-file") != c.warned {
			t.Errorf("--metrics %q, the file %q: %v, %s", c.metrics, c.file, err, log.String())
		}
	}
}
