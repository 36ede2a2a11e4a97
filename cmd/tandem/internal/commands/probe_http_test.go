package commands_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
		{"http://127.0.0.1:1/", "unreachable", 1, "no answer from http://127.0.0.1:1/ (dial tcp 127.0.0.1:1: connect: connection refused): "},
		{"http://", "unreachable", 2, "is not an address"},
		{"foo", "unreachable", 2, `connect to "foo": give host:port`},
		{"foo:bar", "unreachable", 2, `connect to "foo:bar": "bar" is not a port`},
		{"http:/foo", "unreachable", 2, `"/foo" is not a port`},
		{"127.0.0.1:70707", "unreachable", 2, `"70707" is not a port`},
		{"ftp://foo", "unreachable", 2, "this is a URL"},
		{"https://127.0.0.1:1/", "unreachable", 1, "no answer from https://127.0.0.1:1/ (dial tcp 127.0.0.1:1: connect: connection refused): "},
	} {
		got := run(t.Context(), "", nil, "probe", c.addr, "--json")
		checkFailure(t, got, c.exit, c.says)
		if result := last(t, got.stdout); result["status"] != c.status || result["address"] != c.addr {
			t.Errorf("%s: got %v", c.addr, result)
		}
	}
	checkFailure(t, run(t.Context(), "", nil, "probe", server.URL, "--service=x"), 2, "--service names a gRPC service")
}

// What is wrong with the encryption is said as that, and not as a server that is not there.
func TestProbeByHTTPS(t *testing.T) {
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	quiet := func(ca *x509.CertPool) *httptest.Server {
		server := httptest.NewUnstartedServer(handler)
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		if server.TLS = new(tls.Config); ca != nil {
			server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, ca
		}
		server.StartTLS()
		t.Cleanup(server.Close)
		return server
	}
	open, members, plain := quiet(nil), quiet(x509.NewCertPool()), httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: open.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t.Context(), "", nil, "probe", open.URL, "--ca", ca); got != (outcome{0, "serving\n", ""}) {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "probe", open.URL), 1, open.URL+": the server is not trusted (tls: failed to verify certificate: x509: certificate signed by unknown authority): pass")
	checkFailure(t, run(t.Context(), "", nil, "probe", members.URL, "--ca", ca), 1, members.URL+": the server refuses the certificate (certificate required): pass")
	checkFailure(t, run(t.Context(), "", nil, "probe", "https://"+plain.Listener.Addr().String()), 1, "the server does not encrypt its connections: ask it by http://")
	checkFailure(t, run(t.Context(), "", nil, "probe", "https://"+plain.Listener.Addr().String(), "--ca", ca), 1, "the server does not encrypt its connections")
}

func TestProbeByHTTPEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cancel" {
			cancel()
		}
		<-ended
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	checkFailure(t, run(t.Context(), "", nil, "probe", server.URL, "--timeout=1ms"), 1, "no answer from "+server.URL+" within 1ms: check that it runs")
	checkFailure(t, run(ctx, "", nil, "probe", server.URL+"/cancel", "--timeout=1h"), 130, "tandem: cancelled")
}
