package mesh_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/auth"
)

// call sends a request to the HTTP port, and returns what came back, but for its body.
func (m *closedMesh) call(method, path, body string, change func(*http.Request)) *http.Response {
	m.Helper()
	request, err := http.NewRequestWithContext(m.Context(), method, "http://"+m.up.HTTP+path, strings.NewReader(body))
	if err != nil {
		m.Fatal(err)
	}
	change(request)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		m.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer
}

// strange asks for a page or an endpoint by a name that a stranger can own, and returns what came back and its type.
func (m *closedMesh) strange(path string) (text, kind string) {
	m.Helper()
	request, err := http.NewRequestWithContext(m.Context(), http.MethodGet, "http://"+m.up.HTTP+path, nil)
	if err != nil {
		m.Fatal(err)
	}
	request.Host = "evil.example.com"
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		m.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusForbidden {
		m.Errorf("%s: %d, %v", path, answer.StatusCode, err)
	}
	return string(body), answer.Header.Get("Content-Type")
}

// Pages of other origins may call where they are named. What others send without a preflight is
// refused, too.
func TestPagesThatMayCall(t *testing.T) {
	runClosed(t, nil, func(o *mesh.UpOptions) {
		o.Auth.Mode, o.Router.CORSOrigins = auth.None, []string{"https://app.example.com"}
	}, func(m *closedMesh) {
		for origin, allowed := range map[string]bool{"https://app.example.com": true, "https://evil.example.com": false} {
			answer := m.call(http.MethodOptions, "/v1/chat/completions", "", func(r *http.Request) {
				r.Header.Set("Origin", origin)
				r.Header.Set("Access-Control-Request-Method", http.MethodPost)
			})
			if got := answer.Header.Get("Access-Control-Allow-Origin") == origin; got != allowed || allowed != (answer.StatusCode == http.StatusNoContent) {
				m.Errorf("%s: %d %v", origin, answer.StatusCode, answer.Header)
			}
			want := http.StatusForbidden
			if allowed {
				want = http.StatusOK
			}
			answer = m.call(http.MethodPost, "/v1/completions", asksForText, func(r *http.Request) {
				r.Header.Set("Origin", origin)
				r.Header.Set("Sec-Fetch-Site", "cross-site")
				r.Header.Set("Content-Type", "text/plain")
			})
			if answer.StatusCode != want {
				m.Errorf("a simple request of %s: %d", origin, answer.StatusCode)
			}
		}
	})
}

// A page whose name resolves to this machine is of this server's origin, as browsers see it.
func TestNamesOfStrangers(t *testing.T) {
	names := map[string]int{
		"127.0.0.1:8080": 200, "[::1]:8080": 200, "localhost": 200, "LOCALHOST.:8080": 200, "tandem.localhost:8080": 200,
		"host.docker.internal:8080": 200, "router:8080": 200, "app.example.com": 200, "evil.example.com:8080": 403, "localhost.example.com": 403,
	}
	ask := func(m *closedMesh, name string) int {
		return m.call(http.MethodPost, "/v1/completions", asksForText, func(r *http.Request) {
			r.Host = name
			r.Header.Set("Origin", "http://"+name)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			r.Header.Set("Authorization", "Bearer "+m.up.FirstKey)
		}).StatusCode
	}
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} { // as in a container
		runClosed(t, nil, func(o *mesh.UpOptions) {
			o.Listen, o.HTTP = host+":0", host+":0"
			o.Auth.Mode, o.Auth.PublishedOn, o.Router.CORSOrigins = auth.None, "127.0.0.1", []string{"https://app.example.com"}
		}, func(m *closedMesh) {
			for name, want := range names {
				if got := ask(m, name); got != want {
					m.Errorf("%s, listening on %s: %d, want %d", name, host, got, want)
				}
			}
			for path, json := range map[string]bool{"/v1/completions": true, "/chat/completions": true, "/v1/none": true, "/metrics": false, "/": false} {
				text, kind := m.strange(path)
				object := strings.HasPrefix(text, `{"error":{"message":"`) && strings.HasSuffix(text, `"type":"permission_error","param":null,"code":"host_not_allowed"}}`+"\n")
				if object != json || strings.HasPrefix(kind, "application/json") != json || !strings.Contains(text, "is no name of this machine") {
					m.Errorf("%s: %s %q", path, kind, text)
				}
			}
		})
	}
	// Who has a key may use any name.
	runClosed(t, nil, nil, func(m *closedMesh) {
		if got := ask(m, "evil.example.com"); got != http.StatusOK {
			m.Errorf("with a key: %d", got)
		}
	})
}
