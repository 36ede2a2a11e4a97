package commands_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestProbeByHTTP(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /late", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not ready: the model loads\nmore", http.StatusServiceUnavailable)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	if got := run(t.Context(), "", nil, "probe", server.URL+"/ready"); got != (outcome{0, "serving\n", ""}) {
		t.Errorf("got %+v", got)
	}
	for _, c := range []struct {
		addr, status string
		exit         int
		says         string
	}{
		{server.URL + "/late", "not_serving", 1, `is not serving: "not ready: the model loads"`},
		{server.URL + "/nowhere", "unknown", 1, "404"},
		{"http://127.0.0.1:1/", "unreachable", 1, "no answer from http://127.0.0.1:1/ within"},
		{"http://", "unreachable", 2, "is not an address"},
		{"foo", "unreachable", 2, `connect to "foo": give host:port`},
		{"foo:bar", "unreachable", 2, `connect to "foo:bar": "bar" is not a port`},
		{"http:/foo", "unreachable", 2, `"/foo" is not a port`},
		{"127.0.0.1:70707", "unreachable", 2, `"70707" is not a port`},
		{"ftp://foo", "unreachable", 2, "this is a URL"},
		{"https://127.0.0.1:1/", "unreachable", 1, "no answer from https://127.0.0.1:1/ within"},
	} {
		got := run(t.Context(), "", nil, "probe", c.addr, "--json")
		checkFailure(t, got, c.exit, c.says)
		if result := last(t, got.stdout); result["status"] != c.status || result["address"] != c.addr {
			t.Errorf("%s: got %v", c.addr, result)
		}
	}
	checkFailure(t, run(t.Context(), "", nil, "probe", server.URL, "--service=x"), 2, "--service names a gRPC service")
}
