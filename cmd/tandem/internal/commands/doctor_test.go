package commands_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// machineChecks are those of this machine.
var machineChecks = []string{"disk", "instructions", "open files", "processors"}

// examined are the checks of `doctor --json`, by name.
func examined(t *testing.T, o outcome) map[string]doctor.Check {
	t.Helper()
	var said struct{ Checks []doctor.Check }
	if err := json.Unmarshal([]byte(o.stdout), &said); err != nil {
		t.Fatalf("%v in %+v", err, o)
	}
	checks := map[string]doctor.Check{}
	for _, c := range said.Checks {
		checks[c.Name] = c
	}
	for _, name := range machineChecks {
		if checks[name].Detail == "" {
			t.Errorf("%q is not checked", name)
		}
	}
	return checks
}

// wellMesh is a mesh with nothing to say of.
func wellMesh() *controlv1.ListWorkersResponse {
	list := new(controlv1.ListWorkersResponse)
	for id, role := range map[string]controlv1.Role{"p1": controlv1.Role_ROLE_PREFILL, "d1": controlv1.Role_ROLE_DECODE} {
		list.Workers = append(list.Workers, &controlv1.WorkerView{
			Record: &controlv1.WorkerRecord{Id: id, Role: role, State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: "fake", Version: "v1"},
			Load:   &controlv1.LoadReport{}, LoadAge: durationpb.New(0), Connected: true, Registered: true,
		})
	}
	return list
}

func TestDoctor(t *testing.T) {
	router := &fakeRouter{workers: []*controlv1.ListWorkersResponse{wellMesh()}}
	addr := router.start(t)
	folder := "--data-dir=" + t.TempDir()
	got := run(t.Context(), "", nil, "doctor", "--addr", addr, "--control", addr, folder)
	for _, want := range []string{
		"ok       router        " + addr + " answers that it could serve a request now\n", "ok       models        served: fake\n",
		"ok       workers       serving: prefill 1, decode 1, block stores 0\n", "ok       versions      prefill 1, decode 1: all run v1\n",
		"skipped  etcd          not asked: pass --etcd with its address to check it too\n", "skipped  NATS          not asked: pass --nats with its address to check it too\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	got = run(t.Context(), "", nil, "doctor", "--json", "--addr", addr, "--control", addr, folder)
	for name, c := range examined(t, got) {
		if !slices.Contains(machineChecks, name) && name != "memory" && name != "huge pages" && name != "etcd" && name != "NATS" && c.Status != doctor.OK {
			t.Errorf("%+v", c)
		}
	}

	router.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	router.workers[0].Workers[0].Connected = false
	got = run(t.Context(), "", nil, "doctor", "--json", "--addr", addr, "--control", addr, folder)
	checkFailure(t, got, 1, " failed\n")
	checks := examined(t, got)
	if checks["router"].Status != doctor.Failed || checks["connections"].Status != doctor.Failed || checks["models"].Status != doctor.OK {
		t.Errorf("%+v", checks)
	}

	clients := (&fakeRouter{clientsOnly: true}).start(t)
	got = run(t.Context(), "", nil, "doctor", "--json", "--addr", clients, "--control", clients, folder)
	checkFailure(t, got, 1, " failed\n")
	checks = examined(t, got)
	if c := checks["control"]; c.Status != doctor.Failed || !strings.Contains(c.Detail, "does not serve operators") || !strings.HasPrefix(c.Advice, "pass --control") {
		t.Errorf("%+v", c)
	}
}

// Who asks for a router that is not there has a failure; who asks for none has this machine.
func TestDoctorWithoutARouter(t *testing.T) {
	folder := "--data-dir=" + t.TempDir()
	got := run(t.Context(), "", nil, "doctor", "--json", "--addr=127.0.0.1:1", "--control=127.0.0.1:1", "--etcd=http://127.0.0.1:1", "--nats=nats://127.0.0.1:1", "--timeout=200ms", folder)
	checkFailure(t, got, 1, " failed\n")
	checks := examined(t, got)
	for _, name := range []string{"router", "control", "etcd", "NATS"} {
		if c := checks[name]; c.Status != doctor.Failed || c.Advice == "" || !strings.Contains(c.Detail, "127.0.0.1:1") {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for flag, name := range map[string]string{"addr": "control", "control": "router"} {
		checks := examined(t, run(t.Context(), "", nil, "doctor", "--json", "--"+flag+"=127.0.0.1:1", folder))
		if c := checks[name]; c.Status == doctor.Failed { // somebody else may run a mesh here
			t.Errorf("%s: %+v", name, c)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--timeout=0s"}, "--timeout: 0s is not above 0"},
		{[]string{"--etcd=x"}, "--etcd: \"x\" is not a URL"},
		{[]string{"--nats=x"}, "--nats: \"x\" is not a URL"},
		{[]string{"--addr=http://x"}, "--addr: connect to \"http://x\": this is a URL"},
		{[]string{"--control=x:y"}, "--control: connect to \"x:y\": \"y\" is not a port"},
		{[]string{"--cert=x"}, "--cert: needs --ca"},
	} {
		checkFailure(t, run(t.Context(), "", nil, append([]string{"doctor"}, c.args...)...), 2, c.want)
	}
}

// What is wrong with the encryption is found, and not advised.
func TestDoctorOfWhatIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	if got := run(t.Context(), "", nil, "certs", "--dir", dir); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	for name, c := range map[string]struct {
		server         *httptest.Server
		detail, advice string
	}{
		"another authority": {httptest.NewUnstartedServer(http.NotFoundHandler()), ": the server is not trusted (tls: failed to verify certificate: x509: certificate signed by unknown authority)", "pass the authority"},
		"plain":             {httptest.NewServer(http.NotFoundHandler()), ": the server does not encrypt its connections", "leave --ca out"},
	} {
		if c.server.URL == "" {
			c.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			c.server.EnableHTTP2 = true
			c.server.StartTLS()
		}
		t.Cleanup(c.server.Close)
		addr := c.server.Listener.Addr().String()
		checks := examined(t, run(t.Context(), "", nil, "doctor", "--json", "--addr", addr, "--control", addr, "--ca", filepath.Join(dir, "ca.crt"), "--data-dir", dir))
		for _, check := range []string{"router", "control"} {
			if got := checks[check]; got.Detail != addr+c.detail || !strings.HasPrefix(got.Advice, c.advice) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// inUp calls test with what a mesh that runs meanwhile has printed, by the first word of each line.
func inUp(t *testing.T, test func(up map[string]string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := new(readyWriter), new(bytes.Buffer)
	out.ready = func() {
		defer cancel()
		up := map[string]string{}
		for line := range strings.Lines(out.text.String()) {
			if f := strings.Fields(line); len(f) > 1 {
				up[f[0]] = f[1]
			}
		}
		test(up)
	}
	if status := commands.Run(ctx, commands.Process{Stdout: out, Stderr: errs, Args: []string{
		"up", "--engine=simulated", "--model=../../../../models/fable", "--listen=127.0.0.1:0", "--control=127.0.0.1:0", "--http=", "--metrics=", "--log-level=error",
	}}); status != 0 {
		t.Errorf("status %d, %s", status, errs)
	}
}

// TestTopAndDoctorOfAMesh asks a real one.
func TestTopAndDoctorOfAMesh(t *testing.T) {
	inUp(t, func(up map[string]string) {
		got := run(t.Context(), "", nil, "top", "--once", "--control", up["control"])
		for _, want := range []string{"\nprefill  fable  1/1", "\ndecode   fable  1/1", "\nrouter-1  fable  0.00", "\ndecode-1   decode   serving"} {
			if got.status != 0 || !strings.Contains(got.stdout, want) {
				t.Errorf("it lacks %q: %+v", want, got)
			}
		}
		got = run(t.Context(), "", nil, "doctor", "--json", "--addr", up["grpc"], "--control", up["control"], "--etcd", up["etcd"], "--nats", up["nats"], "--data-dir", t.TempDir())
		checks := examined(t, got)
		for _, name := range []string{"router", "models", "control", "membership", "workers", "draining", "connections", "trust", "KV layouts", "versions", "etcd", "versions in etcd", "NATS"} {
			if c := checks[name]; c.Status != doctor.OK {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if t.Failed() {
			t.Logf("checked: %v", slices.Sorted(maps.Keys(checks)))
		}
	})
}
