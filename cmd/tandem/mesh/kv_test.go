package mesh_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

func TestKVAddresses(t *testing.T) {
	for _, c := range []struct {
		name                                     string
		listen, advertise, kvListen, kvAdvertise string
		at                                       string // the KV listener's host
		where, told                              string
	}{
		{"nothing said", "127.0.0.1:0", "", "", "", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99"},
		{"the main listener's host", "10.0.0.1:7071", "", "", "", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:99"},
		{"what the host is called", "0.0.0.0:7071", "pod-7:7071", "", "", "0.0.0.0", "0.0.0.0:0", "pod-7:99"},
		{"and on a fixed port", "0.0.0.0:7071", "pod-7:7071", "0.0.0.0:99", "", "0.0.0.0", "0.0.0.0:99", "pod-7:99"},
		{"another interface", "10.0.0.1:7071", "pod-7:7071", "10.9.0.1:99", "", "10.9.0.1", "10.9.0.1:99", "10.9.0.1:99"},
		{"said outright", "0.0.0.0:7071", "pod-7:7071", "0.0.0.0:99", "fast-7:5", "0.0.0.0", "0.0.0.0:99", "fast-7:5"},
		{"beside a socket", "unix:///run/a.sock", "unix:///run/a.sock", "", "", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99"},
		{"IPv6", "[::1]:0", "", "", "", "::1", "[::1]:0", "[::1]:99"},
	} {
		where, told, err := mesh.KVAddress(c.listen, c.advertise, c.kvListen, c.kvAdvertise, &net.TCPAddr{IP: net.ParseIP(c.at), Port: 99})
		if err != nil || where != c.where || told != c.told {
			t.Errorf("%s: on %q, told %q, %v; want %q, %q", c.name, where, told, err, c.where, c.told)
		}
	}
}

// A worker that cannot open all of its ports keeps none open.
func TestPortsOfAWorkerThatCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	socket := filepath.Join(t.TempDir(), "s")
	if err := os.Mkdir(socket+".pages", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, transport, socket, kvListen string
		want                              string // of the error
	}{
		{"all open", kvtransfer.TransportAuto, kvtransfer.SocketAuto, "127.0.0.1:0", ""},
		{"a port that is taken", kvtransfer.TransportAuto, kvtransfer.SocketAuto, taken.Addr().String(), "--kv-listen"},
		{"no socket for pages", kvtransfer.TransportShm, socket, "", "--kv-transport"},
	} {
		open, err := mesh.LeftOpen(kvtransfer.Config{Transport: c.transport, Socket: c.socket}, c.kvListen)
		if open != 0 || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d ports are open, %v", c.name, open, err)
		}
	}
}

// What cannot be wanted is passed over before anything is tried.
func TestKVDialPassesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ transport, address, want string }{
		{kvtransfer.TransportAuto, "unix://" + path, ""},
		{kvtransfer.TransportUnix, "unix://" + path, ""},
		{kvtransfer.TransportTCP, "unix://" + path, "--kv-transport"},
		{kvtransfer.TransportAuto, "127.0.0.1:1", ""},
		{kvtransfer.TransportTCP, "127.0.0.1:1", ""},
		{kvtransfer.TransportUnix, "127.0.0.1:1", "--kv-transport"},
		{kvtransfer.TransportShm, "127.0.0.1:1", "--kv-transport"},
		{kvtransfer.TransportShm, "unix://" + path, ""},
		{kvtransfer.TransportAuto, "unix:///nowhere/s", "no such socket"},
		{kvtransfer.TransportAuto, "unix://" + file, "no such socket"},
	} {
		conn, err := mesh.KVDial(kvtransfer.Config{Transport: c.transport})(c.address)
		if err == nil {
			conn.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.transport, c.address, err, c.want)
		}
	}
}

// serveOne runs a mesh, lets it serve one disaggregated request, and returns the
// addresses at which its log says that KV sessions were opened, and after each whether the pages
// there were mapped.
func serveOne(t *testing.T, o mesh.UpOptions) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if err := mesh.Run(ctx, o, logger, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer cancel()
		conn, err := rpc.Dial(up.Address, rpc.ClientConfig{})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{
			Input:     &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"},
			MaxTokens: new(uint32(3)), Mode: inferencev1.Mode_MODE_DISAGGREGATED,
		})
		for err == nil {
			_, err = stream.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("the request ended with %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, line := range strings.Split(log.String(), "\n") {
		if !strings.Contains(line, "kv session is open") {
			continue
		}
		_, rest, _ := strings.Cut(line, "address=")
		address, rest, _ := strings.Cut(rest, " ")
		_, rest, _ = strings.Cut(rest, "mapped=")
		isMapped, _, _ := strings.Cut(rest, " ")
		addresses = append(addresses, address+" "+isMapped)
	}
	return strings.Join(addresses, " ")
}

func TestTransportOfAMesh(t *testing.T) {
	for _, c := range []struct {
		transport, socket string
		unix, mapped      bool
	}{
		{kvtransfer.TransportAuto, kvtransfer.SocketAuto, true, false},
		{kvtransfer.TransportAuto, kvtransfer.SocketOff, false, false},
		{kvtransfer.TransportTCP, kvtransfer.SocketAuto, false, false},
		{kvtransfer.TransportUnix, kvtransfer.SocketAuto, true, false},
		{kvtransfer.TransportShm, kvtransfer.SocketAuto, true, true},
	} {
		t.Run(c.transport+" "+c.socket, func(t *testing.T) {
			o := upOptions(t)
			folder := t.TempDir()
			t.Setenv("TMPDIR", folder)
			o.KV.Transport, o.KV.Socket, o.KV.Connections = c.transport, c.socket, 2
			got := serveOne(t, o)
			if strings.Count(got, " ") != 1 || strings.HasSuffix(got, " true") != c.mapped || strings.HasPrefix(got, "unix://"+folder) != c.unix || !c.unix && !strings.HasPrefix(got, "127.0.0.1:") {
				t.Errorf("KV went over %q", got)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// longFolder is a folder for temporary files with no room for the path of a socket.
func longFolder(t *testing.T) string {
	folder := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestNoPlaceForASocket(t *testing.T) {
	t.Setenv("TMPDIR", longFolder(t))
	o := upOptions(t)
	if got := serveOne(t, o); !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("KV went over %q", got)
	}
	o = upOptions(t)
	o.KV.Transport = kvtransfer.TransportUnix
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { t.Error("it is ready") })
	if err == nil || !strings.HasPrefix(err.Error(), "--kv-socket: ") || !strings.Contains(err.Error(), "107 bytes") {
		t.Errorf("a socket that is needed: %v", err)
	}
}

// A socket that is named is listened on there, and one of a dead process replaced.
func TestNamedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	up := upOptions(t)
	up.DecodeWorkers = 1
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := mesh.Run(ctx, up, quiet, prometheus.NewRegistry(), ignore, func(running mesh.Up) {
		defer cancel()
		inner, stop := context.WithCancel(t.Context())
		defer stop()
		part := mesh.ServeOptions{Options: up.Options, Target: "decode", ID: "decode-9"}
		part.Membership.Endpoints, part.Signals.URLs, part.HTTP, part.Metrics = running.Etcd, running.NATS, "", ""
		part.KV.Socket = path
		if err := mesh.Serve(inner, part, quiet, prometheus.NewRegistry(), ignore, func(mesh.Part) {
			defer stop()
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
		}); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}
