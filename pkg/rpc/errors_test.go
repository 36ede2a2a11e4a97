package rpc_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name       string
		err        error
		code       codes.Code
		message    string
		reason     string
		field      string
		retryAfter time.Duration
	}{
		{"argument", rpc.InvalidArgument("sampling.top_p", "give above 0 to 1"), codes.InvalidArgument, "sampling.top_p: give above 0 to 1", api.ReasonInvalidField, "sampling.top_p", 0},
		{"retry", rpc.Error(codes.Unavailable, "NO_WORKERS", "start one", time.Second), codes.Unavailable, "start one", "NO_WORKERS", "", time.Second},
		{"plain status", status.Error(codes.NotFound, "no"), codes.NotFound, "no", "", "", 0},
		{"no status", errors.New("x"), codes.Unknown, "x", "", "", 0},
		{"none", nil, codes.OK, "", "", "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := status.Convert(test.err)
			retryAfter, ok := rpc.RetryAfter(test.err)
			if s.Code() != test.code || s.Message() != test.message || rpc.Reason(test.err) != test.reason ||
				rpc.Field(test.err) != test.field || retryAfter != test.retryAfter || ok != (test.retryAfter > 0) {
				t.Errorf("got %v %q reason %q field %q retry %s %v", s.Code(), s.Message(), rpc.Reason(test.err), rpc.Field(test.err), retryAfter, ok)
			}
			if test.err == nil {
				return
			}
			if wrapped := fmt.Errorf("outside: %w", test.err); rpc.Reason(wrapped) != test.reason || rpc.Field(wrapped) != test.field {
				t.Error("wrapping hides the details")
			}
		})
	}
}

// A call that finds no connection says why in words for people.
func TestDialProblem(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{status.Error(codes.Unavailable, "the worker is leaving"), ""},
		{callTo(t, "127.0.0.1:1"), "connection refused"},
		{callTo(t, "no-host.invalid:1"), "the name does not resolve"},
		{callTo(t, "unix:///no/such/socket"), "no such file or directory"},
	} {
		if got := rpc.DialProblem(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}

// callTo is the error of a call to an address where nobody listens.
func callTo(t *testing.T, address string) error {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	return err
}

func TestListenExplains(t *testing.T) {
	taken, err := rpc.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	folder := t.TempDir()
	socket := filepath.Join(folder, "s")
	live, err := rpc.Listen("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = live.Close() }()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		taken.Addr().String():                          "already in use",
		"unix://" + socket:                             "already in use",
		"unix://" + file:                               "the path exists and is not a socket",
		"unix://relative":                              "absolute",
		"unix:///" + strings.Repeat("x", 200):          "107",
		"7070":                                         "host:port",
		"127.0.0.1:99999":                              `"99999" is not a port: choose`,
		"no-such-host.invalid:0":                       `cannot find the host "no-such-host.invalid": choose`,
		"203.0.113.1:0":                                "does not have that address",
		"unix://" + filepath.Join(file, "deep"):        "listen on",
		"unix://" + filepath.Join(folder, "none", "s"): "mkdir -p " + filepath.Join(folder, "none") + ")",
	} {
		_, err := rpc.Listen(address)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", address, err, want)
		}
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "keep" {
		t.Error("a file that is no socket was touched")
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as a killed process leaves it
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	listener, err := rpc.Listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDialRefusesBadAddresses(t *testing.T) {
	for _, address := range []string{"", "7070", ":7070", "host:", "unix://relative"} {
		if conn, err := rpc.Dial(address, rpc.ClientConfig{}); err == nil {
			_ = conn.Close()
			t.Errorf("%q was taken", address)
		}
	}
}
