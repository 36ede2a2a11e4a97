package mesh_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// A client over HTTP that keeps its connection is told to go when the drain begins,
// while the answer that runs is finished and probes are answered. The router's record
// says that it drains.
func TestDrainEndsKeptConnections(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Engine.Simulated.StepTime = latency.Model{BaseMs: 2}
	up, ended := startMesh(ctx, t, o, quiet, telemetry.NewRegistry())
	running, _ := keep(t, up.HTTP, http.MethodPost, "/v1/completions", `{"prompt":"Once","max_tokens":1000,"ignore_eos":true,"stream":true}`)
	answer := bufio.NewScanner(running)
	if !answer.Scan() {
		t.Fatal("the answer does not begin")
	}
	models, conn := keep(t, up.HTTP, http.MethodGet, "/v1/models", "")
	if _, err := io.ReadAll(models); err != nil {
		t.Fatal(err)
	}
	drains := draining(t, up.Etcd, "router-1")
	cancel()
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the kept connection reads %d bytes, %v", n, err)
	}
	if status, _ := get(t, up.HTTP, "/healthz"); status != http.StatusOK {
		t.Errorf("health is %d: the drain was over before the connection was", status)
	}
	if !drains() {
		t.Error("the record of the router never says that it drains")
	}
	last := ""
	for answer.Scan() {
		if line := answer.Text(); line != "" {
			last = line
		}
	}
	if last != "data: [DONE]" {
		t.Errorf("the running answer ended with %q, %v", last, answer.Err())
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// keep sends a request over a connection that stays open.
func keep(t *testing.T, address, method, path, body string) (io.Reader, net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	q, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Write(conn); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), q)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d", method, path, response.StatusCode)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.Body, conn
}

// draining follows the records in etcd and returns a function that waits until one
// part's says that it drains.
func draining(t *testing.T, etcd []string, id string) func() bool {
	t.Helper()
	members, err := membership.Connect(t.Context(), membership.Config{Endpoints: etcd}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	seen, drained := make(chan struct{}), make(chan struct{})
	once, known := sync.OnceFunc(func() { close(drained) }), sync.OnceFunc(func() { close(seen) })
	var wait sync.WaitGroup
	wait.Go(func() {
		_ = members.Watch(ctx, func(view membership.View) {
			known()
			for _, record := range view.Workers {
				if record.GetId() == id && record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING {
					once()
				}
			}
		})
	})
	t.Cleanup(func() {
		stop()
		wait.Wait()
		_ = members.Close()
	})
	<-seen
	return func() bool {
		select {
		case <-drained:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
