package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// probeHTTP asks once by a GET. 2xx says that the server serves, 503 that it does
// not, and what else it answers says nothing.
func probeHTTP(ctx context.Context, addr, _ string, timeout time.Duration) (probeResult, error) {
	result := probeResult{Address: addr, Status: "unreachable"}
	if parsed, err := url.Parse(addr); err != nil || parsed.Host == "" {
		return result, fmt.Errorf("%q is no address: give host:port, unix:///path or http://host:port/path", addr)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, addr, http.NoBody)
	if err != nil {
		return result, fmt.Errorf("ask %s: %w", addr, err)
	}
	// Straight to the server: a proxy knows nothing of its health.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	began := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return result, fmt.Errorf("no answer from %s within %s: see that it runs and listens there", addr, timeout)
	}
	defer response.Body.Close()
	// A line is enough: /readyz says why it is not ready.
	said, _ := io.ReadAll(io.LimitReader(response.Body, 256))
	result.LatencyMs = float64(time.Since(began)) / float64(time.Millisecond)
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		result.Status = "serving"
		return result, nil
	case code == http.StatusServiceUnavailable:
		result.Status = "not_serving"
		reason, _, _ := strings.Cut(string(said), "\n")
		return result, fmt.Errorf("%s is not serving: %q", addr, reason)
	default:
		result.Status = "unknown"
		return result, fmt.Errorf("%s answered %s: is the address right?", addr, response.Status)
	}
}
