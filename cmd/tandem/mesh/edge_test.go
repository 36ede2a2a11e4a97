package mesh_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/frontpage"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// whileUp runs a test while a mesh with steps of a millisecond serves, in a goroutine of its own.
func whileUp(t *testing.T, change func(*mesh.UpOptions), test func(t *testing.T, up mesh.Up)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Engine.Simulated.StepTime = latency.Model{BaseMs: 1}
	if change != nil {
		change(&o)
	}
	up, ended := startMesh(ctx, t, o, quiet, telemetry.NewRegistry())
	test(t, up)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// getAs is a GET by who accepts these types.
func getAs(t *testing.T, accept, url string) (status int, kind, body string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Accept", accept)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	kind, _, _ = strings.Cut(response.Header.Get("Content-Type"), ";")
	return response.StatusCode, kind, string(text)
}

// Each path that is described is there, with the type that is described; what / names are
// those paths, and no others.
func TestDescribedPathsAreServed(t *testing.T) {
	runMesh(t, upOptions(t), func(up mesh.Up) {
		var described struct {
			Paths map[string]map[string]struct {
				Responses map[string]struct{ Content map[string]json.RawMessage }
			}
			Components struct {
				Schemas map[string]struct {
					Required   []string
					Properties map[string]json.RawMessage
				}
			}
		}
		_, _, text := getAs(t, "", "http://"+up.HTTP+"/openapi.json")
		if err := json.Unmarshal([]byte(text), &described); err != nil {
			t.Fatal(err)
		}
		for path, methods := range described.Paths {
			served := false
			for _, method := range methods {
				_, answers := method.Responses["200"]
				served = served || answers
			}
			if !served { // what it names is never there, which services/router/openai has a test of
				delete(described.Paths, path)
				continue
			}
			if _, reads := methods["get"]; !reads {
				continue // of what is posted services/router/openai has a test
			}
			for _, accept := range []string{"text/html,*/*;q=0.8", "*/*"} {
				status, kind, body := getAs(t, accept, "http://"+up.HTTP+strings.ReplaceAll(path, "{model}", up.Model))
				if _, known := methods["get"].Responses["200"].Content[kind]; status != http.StatusOK || !known || body == "" {
					t.Errorf("GET %s: %d %s %.100s", path, status, kind, body)
				}
			}
		}
		_, _, text = getAs(t, "*/*", "http://"+up.HTTP+"/")
		var status frontpage.Status
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			t.Fatal(err)
		}
		if !status.Ready || status.GRPC != up.Address || status.Workers != (frontpage.Workers{Prefill: 1, Decode: 1}) || len(status.Models) != 1 || status.Models[0].ID != up.Model || status.Models[0].ContextTokens == 0 {
			t.Errorf("status %+v", status)
		}
		delete(described.Paths, "/")
		if want := slices.Sorted(maps.Keys(described.Paths)); !slices.Equal(slices.Sorted(slices.Values(status.Endpoints)), want) {
			t.Errorf("/ names %v, described are %v", status.Endpoints, want)
		}
		for path, schema := range map[string]string{"/": "Status", "/console": "Status", "/version": "Version"} {
			_, _, text := getAs(t, "", "http://"+up.HTTP+path)
			var members map[string]json.RawMessage
			if err := json.Unmarshal([]byte(text), &members); err != nil {
				t.Fatal(err)
			}
			s := described.Components.Schemas[schema]
			for name := range members {
				if s.Properties[name] == nil {
					t.Errorf("%s has %s, which is not described", path, name)
				}
			}
			for _, name := range s.Required {
				if members[name] == nil {
					t.Errorf("%s lacks %s", path, name)
				}
			}
		}
		if _, _, page := getAs(t, "", "http://"+up.HTTP+"/metrics"); !strings.Contains(page, "\ntandem_router_requests_running 0\n") {
			t.Errorf("metrics: %.200s", page)
		}
		for _, path := range []string{"/health", "/version", "/readyz"} {
			if status, _, _ := getAs(t, "", "http://"+up.Metrics+path); status != http.StatusOK {
				t.Errorf("%s beside the metrics: %d", path, status)
			}
		}
		_, kind, list := getAs(t, "", "http://"+up.Metrics+"/")
		for _, path := range []string{"/metrics ", "/healthz ", "/readyz ", "/version "} {
			if !strings.Contains(list, "\n"+path) || !strings.HasPrefix(kind, "text/plain") {
				t.Errorf("/ beside the metrics does not list %s: %s", path, list)
			}
		}
	})
}

// With the last decode worker drained, every probe says so, and a refusal names the worker and
// what takes it back; then all serve again.
func TestProbesAgreeOnADrainedPool(t *testing.T) {
	whileUp(t, nil, func(t *testing.T, up mesh.Up) {
		ctx := t.Context()
		connect := func(address string) *grpc.ClientConn {
			conn, err := rpc.Dial(address, rpc.ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		clients, operators := connect(up.Address), connect(up.Control)
		defer func() { _, _ = clients.Close(), operators.Close() }()
		health, err := grpc_health_v1.NewHealthClient(clients).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		await := func(want grpc_health_v1.HealthCheckResponse_ServingStatus, code int) {
			t.Helper()
			for {
				answer, err := health.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if answer.GetStatus() == want {
					break
				}
			}
			for _, path := range []string{"/readyz", "/health"} {
				if status, text := get(t, up.HTTP, path); status != code {
					t.Errorf("health says %v, %s %d %s", want, path, status, text)
				}
			}
		}
		await(grpc_health_v1.HealthCheckResponse_SERVING, http.StatusOK)
		generate := func() error {
			answer, err := inferencev1.NewInferenceClient(clients).Generate(ctx, &inferencev1.GenerateRequest{
				Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once"}, MaxTokens: new(uint32(1)),
			})
			if err == nil {
				_, err = answer.Recv()
			}
			return err
		}
		control := controlv1.NewControlClient(operators)
		for _, id := range []string{"decode-1", "prefill-1"} { // prefill workers would serve alone
			drain, err := control.Drain(ctx, &controlv1.DrainRequest{WorkerId: id, Force: true})
			for err == nil {
				_, err = drain.Recv()
			}
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if id == "decode-1" {
				if err := generate(); err != nil {
					t.Errorf("the prefill worker alone: %v", err)
				}
			}
		}
		await(grpc_health_v1.HealthCheckResponse_NOT_SERVING, http.StatusServiceUnavailable)
		alone, err := grpc_health_v1.NewHealthClient(clients).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: rpc.HealthAlone})
		if err != nil || alone.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("the router alone: %v, %v", alone, err)
		}
		err = generate()
		if grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "'tandem undrain decode-1'") || strings.Contains(err.Error(), "registered") {
			t.Errorf("refused with %v", err)
		}
		if _, err := control.Undrain(ctx, &controlv1.UndrainRequest{WorkerId: "decode-1"}); err != nil {
			t.Fatal(err)
		}
		await(grpc_health_v1.HealthCheckResponse_SERVING, http.StatusOK)
	})
}

// Workers are listed with the engine that was chosen for them.
func TestWorkersSayTheEngineThatComputes(t *testing.T) {
	o := upOptions(t)
	o.Engine.Name, o.Engine.Device, o.Engine.CPU.Threads = engines.Auto, engines.DeviceCPU, 1
	o.Engine.KVMemory = 64 << 20
	runMesh(t, o, func(up mesh.Up) {
		conn, err := rpc.Dial(up.Control, rpc.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		list, err := controlv1.NewControlClient(conn).ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		if err != nil || len(list.GetWorkers()) != 2 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, w := range list.GetWorkers() {
			if got := w.GetRecord().GetEngine(); got != engines.CPU {
				t.Errorf("%s has the engine %q", w.GetRecord().GetId(), got)
			}
		}
	})
}

// A client that leaves in the middle frees everything, down to the workers.
func TestClientOfHTTPLeaves(t *testing.T) {
	whileUp(t, nil, func(t *testing.T, up mesh.Up) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+up.HTTP+"/v1/completions",
			strings.NewReader(`{"prompt": "Once upon a time", "max_tokens": 1500, "n": 4, "stream": true}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		lines := bufio.NewScanner(response.Body)
		for range 16 { // events and the blank lines between them
			if !lines.Scan() {
				t.Fatal(response.Status, lines.Err())
			}
		}
		leave()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			_, page := get(t, up.Metrics, "/metrics")
			if strings.Contains(page, "\ntandem_router_requests_running 0\n") && strings.Contains(page, `tandem_requests_finished_total{reason="cancelled"} 4`) &&
				strings.Contains(page, `tandem_worker_sequences{state="running",worker="decode-1"} 0`) && strings.Contains(page, `tandem_http_requests_total{code="499",route="/v1/completions"} 1`) {
				return
			}
			<-tick.C
		}
	})
}

// Probes are answered beside the API, and what is neither by the API.
func TestProbesAreBesideTheAPI(t *testing.T) {
	whileUp(t, nil, func(t *testing.T, up mesh.Up) {
		if status, text := get(t, up.HTTP, "/readyz"); status != http.StatusOK || text != "ready\n" {
			t.Errorf("readyz: %d %q", status, text)
		}
		response, err := http.Post("http://"+up.HTTP+"/v1/nothing", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		var object struct {
			Error struct{ Message, Type, Code string } `json:"error"`
		}
		if err := json.Unmarshal(body, &object); err != nil || response.StatusCode != http.StatusNotFound || object.Error.Code != "unknown_url" {
			t.Errorf("%d %s", response.StatusCode, body)
		}
	})
}
