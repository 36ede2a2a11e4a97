package integration_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// Operators' commands over processes: a worker is drained, leaves, and comes back; the
// last one leaves by force only; clients' port knows none of it.
func TestDrainAndUndrain(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs and waits for leases")
	}
	t.Parallel() // much of it is waiting
	b := clustertest.Build(t)
	m := clustertest.StartProcesses(t, b, 1, 2, "--engine=simulated")
	pool := m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 2)
	m.Router().AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1)
	tandem := func(args ...string) (out string, ok bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), b.Tandem, args...)
		cmd.Env = clustertest.Environ()
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &text
		err := cmd.Run()
		return text.String(), err == nil
	}
	control := "--control=" + m.Control()
	serve := func() {
		t.Helper()
		generate(t, m.Router(), request(longPrompt(1), 5, 0, aggregated))
	}

	if out, ok := tandem("drain", pool[0], "--control="+m.Address()); ok || !strings.Contains(out, "does not serve operators") {
		t.Errorf("a drain where clients are: %s", out)
	}
	for range 2 { // and back, and again
		if out, ok := tandem("drain", pool[0], control); !ok {
			t.Fatal(out)
		}
		m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 1)
		serve()
		if out, ok := tandem("drain", pool[1], control); ok || !strings.Contains(out, "--force") {
			t.Errorf("the last one: %s", out)
		}
		// Until it is listed no more, and has not ended.
		clustertest.Await(t, func() string {
			workers, err := m.Router().Workers(controlv1.Role_ROLE_DECODE)
			if err != nil || len(workers) != 1 {
				return "it is listed"
			}
			return ""
		})
		if out, ok := tandem("undrain", pool[0], control); !ok {
			t.Fatal(out)
		}
		m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 2)
		serve()
	}
	// It serves: the other one is gone.
	if out, ok := tandem("drain", pool[1], control); !ok {
		t.Fatal(out)
	}
	m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 1)
	for _, mode := range []string{"aggregated", "disaggregated"} {
		if out, ok := tandem("generate", "--addr="+m.Address(), "--prompt=Once upon a time there was", "--max-tokens=5", "--mode="+mode); !ok {
			t.Errorf("%s: %s", mode, out)
		}
	}
	if out, ok := tandem("drain", pool[0], "--force", control); !ok {
		t.Fatal(out)
	}
	m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 0)
	if out, ok := tandem("undrain", pool[0], "--json", control); !ok || !strings.Contains(out, `"serving":true`) {
		t.Fatal(out)
	}
	m.Router().AwaitPool(t, controlv1.Role_ROLE_DECODE, 1)
	// A prefill worker that came back sends KV again.
	prefill := m.Router().AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1)
	if out, ok := tandem("drain", prefill[0], "--force", control); !ok {
		t.Fatal(out)
	}
	clustertest.Await(t, func() string {
		if workers, err := m.Router().Workers(controlv1.Role_ROLE_PREFILL); err != nil || len(workers) != 0 {
			return "it is listed"
		}
		return ""
	})
	if out, ok := tandem("undrain", prefill[0], control); !ok {
		t.Fatal(out)
	}
	m.Router().AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1)
	out, ok := tandem("generate", "--addr="+m.Address(), "--prompt=Once upon a time there was", "--max-tokens=5", "--mode=disaggregated", "--json")
	if !ok || !strings.Contains(out, `"mode":"disaggregated"`) {
		t.Errorf("%s", out)
	}
}
