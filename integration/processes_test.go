package integration_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// Every part in a process of its own, with a real etcd and a real NATS server.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs and waits for leases")
	}
	t.Parallel() // much of it is waiting
	binaries := clustertest.Build(t)
	etcd, nats := clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries)
	serve := func(t *testing.T, target string, args ...string) *clustertest.Process {
		t.Helper()
		args = append([]string{"serve", "--target=" + target, "--model=../models/fable", "--kv-memory=64MiB"}, args...)
		return clustertest.Launch(t, target, binaries.Tandem, append(args, clustertest.Servers(etcd, nats)...)...)
	}

	t.Run("the same tokens as in one process", func(t *testing.T) {
		router := serve(t, "router", "--listen=127.0.0.1:0")
		m := router.Client(t)
		if said := router.Field(t, "waiting"); !strings.Contains(said, "no worker that decodes") {
			t.Errorf("without workers the router says that it is waiting: %s", said)
		}
		prefill, decode := serve(t, "prefill"), serve(t, "decode")
		prefill.AwaitServing(t)
		decode.AwaitServing(t)
		router.AwaitReady(t)
		awaitWorkers(t, m, 2)
		alone := clustertest.Start(t, nil)
		for _, temperature := range []float32{0, 0.8} {
			want := generate(t, alone.Client, request(longPrompt(1), 40, temperature, aggregated))
			for _, mode := range []inferencev1.Mode{disaggregated, aggregated} {
				r := generate(t, m, request(longPrompt(1), 40, temperature, mode))
				if !slices.Equal(r.Tokens, want.Tokens) {
					t.Errorf("%v, temperature %v: %v, want %v", mode, temperature, r.Tokens, want.Tokens)
				}
				checkRoute(t, r, mode)
			}
		}
		m.AwaitIdle(t)
		for _, p := range []*clustertest.Process{prefill, decode, router} {
			if err := p.Terminate(t); err != nil {
				t.Errorf("%s ended with %v\n%s", p.Name, err, p.Stderr())
			}
		}
	})

	t.Run("a worker dies half-way and another goes on", func(t *testing.T) {
		slow := []string{"--engine=simulated", "--simulated-base-ms=10"}
		m := serve(t, "router", "--listen=127.0.0.1:0", "--engine=simulated").Client(t)
		pools := map[controlv1.Role]map[string]*clustertest.Process{}
		for role, target := range map[controlv1.Role]string{controlv1.Role_ROLE_PREFILL: "prefill", controlv1.Role_ROLE_DECODE: "decode"} {
			pools[role] = make(map[string]*clustertest.Process)
			for _, id := range []string{target + "-a", target + "-b", target + "-c"} {
				pools[role][id] = serve(t, target, append(slow, "--id="+id)...).AwaitServing(t)
			}
		}
		awaitWorkers(t, m, 6)
		ask := func() *inferencev1.GenerateRequest { return request(longPrompt(1), 100, 0.8, disaggregated) }
		want := generate(t, m, ask())
		for _, role := range []controlv1.Role{controlv1.Role_ROLE_DECODE, controlv1.Role_ROLE_PREFILL} {
			for _, tokens := range []int{0, 30} { // while the prompt is computed, and later
				if role == controlv1.Role_ROLE_PREFILL && tokens > 0 {
					continue // it has nothing to do with the request any more
				}
				m.AwaitIdle(t) // or the one before may be what keeps a worker busy
				killed := make(chan string, 1)
				r, err := m.GenerateWith(t.Context(), ask(), func(received int) {
					if received == tokens && len(killed) == 0 {
						id := busiest(t, m, role)
						pools[role][id].Kill()
						killed <- id
					}
				})
				if err != nil || !slices.Equal(r.Tokens, want.Tokens) || r.Text != want.Text {
					t.Errorf("%v killed after %d tokens: %v, want %v (%v)", role, tokens, r.Tokens, want.Tokens, err)
				}
				select {
				case id := <-killed:
					if id == r.Finished.GetRoute().GetDecode() || r.Finished.GetRoute().GetRetries() == 0 && role == controlv1.Role_ROLE_DECODE {
						t.Errorf("%s was killed after %d tokens: route %v", id, tokens, r.Finished.GetRoute())
					}
				default:
					t.Fatalf("nobody was killed after %d tokens", tokens)
				}
			}
		}
		m.AwaitIdle(t)
	})

	t.Run("what is missing is said in one line", func(t *testing.T) {
		for name, c := range map[string]struct {
			args []string
			says []string
		}{
			"no etcd":     {[]string{"serve", "--target=decode", "--etcd=http://127.0.0.1:1", "--start-timeout=1s"}, []string{"etcd", "127.0.0.1:1"}},
			"no model":    {[]string{"serve", "--target=decode", "--model=nowhere", "--etcd=" + etcd}, []string{"nowhere"}},
			"no target":   {[]string{"serve"}, []string{"--target"}},
			"port in use": {[]string{"serve", "--target=router", "--model=../models/fable", "--etcd=" + etcd, "--listen=" + strings.TrimPrefix(nats, "nats://")}, []string{"in use", "--listen"}},
		} {
			t.Run(name, func(t *testing.T) {
				p := clustertest.Launch(t, "tandem", binaries.Tandem, c.args...)
				if err := p.Exit(t); err == nil {
					t.Error("exit status 0")
				}
				said := strings.TrimSpace(p.Stderr())
				// Log lines may come before it, such as what is waited for.
				lines := strings.Split(said, "\n")
				if last := len(lines) - 1; !strings.HasPrefix(lines[last], "tandem: ") || slices.ContainsFunc(lines[:last], func(line string) bool { return !strings.HasPrefix(line, "time=") }) {
					t.Errorf("said:\n%s", said)
				}
				for _, word := range c.says {
					if !strings.Contains(said, word) {
						t.Errorf("%q is not in: %s", word, said)
					}
				}
			})
		}
	})
}

// busiest is the worker of a role that a router has requests on.
func busiest(t *testing.T, m *clustertest.Client, role controlv1.Role) string {
	t.Helper()
	view, err := m.Control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{Role: role})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range view.GetWorkers() {
		if w.GetInFlight() > 0 {
			return w.GetRecord().GetId()
		}
	}
	t.Fatalf("no worker of role %v is busy: %v", role, view)
	return ""
}

// awaitWorkers waits until a router is connected to n workers.
func awaitWorkers(t *testing.T, m *clustertest.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	stream, err := m.Control.WatchWorkers(ctx, &controlv1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		view, err := stream.Recv()
		if err != nil {
			t.Fatalf("wait for %d workers: %v", n, err)
		}
		connected := 0
		for _, w := range view.GetWorkers() {
			if w.GetConnected() {
				connected++
			}
		}
		if connected >= n {
			return
		}
	}
}
