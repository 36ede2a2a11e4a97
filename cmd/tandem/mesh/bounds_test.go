package mesh_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// endedBy is whether the other side closes a connection within the time; nothing is read that
// goes on.
func endedBy(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// Whoever connects to any port and sends nothing, or headers without an end, is cut off; headers
// have a largest size.
func TestPortsAreBounded(t *testing.T) {
	o := upOptions(t)
	o.Router.ReceiveTimeout = 5 * time.Second
	runMesh(t, o, func(up mesh.Up) {
		operators := dial(t, up.Control)
		list, err := controlv1.NewControlClient(operators).ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		_ = operators.Close()
		if err != nil {
			t.Fatal(err)
		}
		ports := map[string]string{"router": up.Address, "control": up.Control, "HTTP": up.HTTP, "metrics": up.Metrics}
		for _, w := range list.GetWorkers() {
			ports[w.GetRecord().GetId()] = w.GetRecord().GetAddresses()[0]
			for _, address := range w.GetRecord().GetKvAddresses() {
				if !strings.HasPrefix(address, "unix:") {
					ports[w.GetRecord().GetId()+" KV"] = address
				}
			}
		}
		// Each waits as long as the server lets it: all at a time.
		ends := map[string]chan bool{}
		connect := func(name, address, says string) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, says); err != nil {
				t.Fatal(err)
			}
			ended := make(chan bool, 1)
			ends[name] = ended
			go func() {
				defer conn.Close()
				ended <- endedBy(t, conn, time.Minute)
			}()
		}
		for name, address := range ports {
			connect(name+", silent", address, "")
			connect(name+", half a request", address, "GET /metrics HTTP/1.1\r\nX-Slow: ")
		}
		for name, path := range map[string]string{"HTTP": "/v1/completions", "HTTP, what takes no body": "/healthz"} {
			connect(name+", a body that does not come", up.HTTP, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
		}
		for name, ended := range ends {
			if !<-ended {
				t.Errorf("%s: the connection is still open after a minute", name)
			}
		}

		for name, address := range map[string]string{"HTTP": up.HTTP, "metrics": up.Metrics} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			// The server may close before it has read all.
			_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: "+strings.Repeat("x", 1<<17)+"\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil && response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%s answers headers of 128 KiB with %s", name, response.Status)
			}
			if err == nil {
				_ = response.Body.Close()
			}
			_ = conn.Close()
		}
		clients := dial(t, up.Address)
		defer func() { _ = clients.Close() }()
		long := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("x", 1<<17))
		if _, err := inferencev1.NewInferenceClient(clients).ListModels(long, &inferencev1.ListModelsRequest{}); err == nil {
			t.Error("gRPC takes headers of 128 KiB")
		}
		if _, err := inferencev1.NewInferenceClient(clients).ListModels(t.Context(), &inferencev1.ListModelsRequest{}); err != nil {
			t.Error(err)
		}
	})
}
