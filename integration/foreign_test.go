package integration_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// otherWeights is a copy of the bundled model in which every fiftieth weight has
// another mantissa.
func otherWeights(t *testing.T) string {
	t.Helper()
	dir, from := t.TempDir(), "../models/fable"
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if f.Name() == "model.safetensors" {
			// A header of that length, then numbers in bf16: the low byte has 7 bits of
			// the mantissa.
			for i := 8 + int(binary.LittleEndian.Uint64(data)); i < len(data); i += 100 {
				data[i] ^= 0x60
			}
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A router that has read no weights, and decode workers under the same name with other
// weights and with other arithmetic: every answer is that of the mesh without them.
func TestForeignWorkersOverProcesses(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel() // much of it is waiting
	binaries := clustertest.Build(t)
	etcd, nats := clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries)
	serve := func(target string, args ...string) *clustertest.Process {
		args = append([]string{"serve", "--target=" + target, "--model=../models/fable", "--kv-memory=64MiB"}, args...)
		return clustertest.Launch(t, target, binaries.Tandem, append(args, clustertest.Servers(etcd, nats)...)...)
	}
	router := serve("router", "--listen=127.0.0.1:0")
	serve("prefill").AwaitServing(t)
	serve("decode", "--id=decode-1").AwaitServing(t)
	serve("decode", "--id=decode-2").AwaitServing(t)
	router.AwaitServing(t)
	m := router.Client(t)
	awaitWorkers(t, m, 3)

	const requests = 24
	modes := []inferencev1.Mode{aggregated, disaggregated, inferencev1.Mode_MODE_AUTO}
	ask := func(i int) *inferencev1.GenerateRequest {
		return request(longPrompt(i), 24, 0.8, modes[i%len(modes)])
	}
	var want [requests]clustertest.Result
	for i := range want {
		want[i] = generate(t, m, ask(i))
		if f := want[i].Accepted.GetSystemFingerprint(); len(f) != 15 || f != want[0].Accepted.GetSystemFingerprint() {
			t.Fatalf("fingerprint %q, before %q", f, want[0].Accepted.GetSystemFingerprint())
		}
	}
	foreign := map[string][]string{
		"other-weights":    {"--model=" + otherWeights(t), "--model-name=fable"},
		"other-arithmetic": {"--cpu-weights=int8"},
	}
	for id, args := range foreign {
		serve("decode", append(args, "--id="+id)...).AwaitServing(t)
	}
	awaitWorkers(t, m, 5)
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for i := client; i < 2*requests; i += 4 {
				r, err := m.Generate(t.Context(), ask(i%requests))
				w := want[i%requests]
				if route := r.Finished.GetRoute(); err != nil || !slices.Equal(r.Tokens, w.Tokens) || !route.GetReproducible() ||
					r.Accepted.GetSystemFingerprint() != w.Accepted.GetSystemFingerprint() || foreign[route.GetDecode()] != nil {
					t.Errorf("request %d: %v by %v, want %v (%v)", i, r.Tokens, route, w.Tokens, err)
				}
			}
		})
	}
	clients.Wait()

	version := map[string]*controlv1.ModelVersion{}
	workers, err := m.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		r := w.GetRecord()
		version[r.GetId()] = &controlv1.ModelVersion{Model: "fable", ModelDigest: r.GetModelDigest(), ArithmeticClass: r.GetLayout().GetArithmeticClass()}
		// On a busy machine a worker may also be slower than it reports.
		if out := w.GetExcluded() != "" && !strings.HasPrefix(w.GetExcluded(), "slower than it reports"); out != (foreign[r.GetId()] != nil) {
			t.Errorf("%s: excluded %q", r.GetId(), w.GetExcluded())
		}
	}
	for id := range foreign {
		if said := strings.Count(router.Stderr(), "worker="+id+" "); said != 1 {
			t.Errorf("the log says %d times that %s is left out:\n%s", said, id, router.Stderr())
		}
	}

	// What operators list is served, and what it is shows.
	set := func(versions ...*controlv1.ModelVersion) {
		if _, err := m.Control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Versions: versions}}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{want[0].Accepted.GetSystemFingerprint(): true}
	for id := range foreign {
		set(version[id])
		r := generate(t, m, ask(0))
		if r.Finished.GetRoute().GetDecode() != id || seen[r.Accepted.GetSystemFingerprint()] {
			t.Errorf("with %v listed: %v, fingerprint %s", version[id], r.Finished.GetRoute(), r.Accepted.GetSystemFingerprint())
		}
		seen[r.Accepted.GetSystemFingerprint()] = true
	}
	set()
	if r := generate(t, m, ask(0)); !slices.Equal(r.Tokens, want[0].Tokens) {
		t.Errorf("with the policy taken back: %v, want %v", r.Tokens, want[0].Tokens)
	}
	m.AwaitIdle(t)
}
