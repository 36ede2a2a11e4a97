package integration_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const ours = "github.com/tandem-serving/tandem/"

// edge is one import: package from, which is ours, imports to.
type edge struct {
	from, to string
	// file is where, relative to the root.
	file string
	// test: only a test file does.
	test bool
}

// directionRule forbids edges. Both ends of an edge of ours come without the
// common prefix, so that rules read like the folders.
type directionRule struct {
	name, reason string
	forbids      func(e edge) bool
}

func within(path string, folders ...string) bool {
	for _, folder := range folders {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return true
		}
	}
	return false
}

// service is the name of the service that a package belongs to, or "".
func service(path string) string {
	rest, ok := strings.CutPrefix(path, "services/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// testHelper reports whether a package exists for tests: it is, or is in, a folder
// whose name ends in "test". A module's own name says nothing: loadtest is a product.
func testHelper(path string) bool {
	_, below, _ := strings.Cut(strings.TrimPrefix(path, ours), "/")
	return slices.ContainsFunc(strings.Split(below, "/"), func(folder string) bool { return strings.HasSuffix(folder, "test") })
}

// core are the folders of state machines: Handle(now, event) gives actions.
var core = []string{
	"pkg/worker", "pkg/offload", "pkg/scheduler", "pkg/kvcache", "pkg/sampler", "pkg/speculation", "pkg/routing", "pkg/joining", "pkg/scaling", "services/router/stoptext",
	"pkg/kvtransfer/receiver", "pkg/kvtransfer/sender", "pkg/kvtransfer/internal/coverage", "pkg/kvtransfer/internal/deadline",
	"pkg/kvtransfer/internal/transitions", "pkg/blockstore",
}

// inCore reports whether a package is of the core; its test helpers are not.
func inCore(path string) bool { return within(path, core...) && !testHelper(path) }

var directionRules = []directionRule{
	{
		name:   "pkg imports no services",
		reason: "what services share must not know them: a cycle of modules would be next, and every service would be built with every other",
		forbids: func(e edge) bool {
			return within(e.from, "pkg") && within(e.to, "services")
		},
	},
	{
		name:    "the protocol's words import only proto",
		reason:  "every package may import them, so they may import none",
		forbids: func(e edge) bool { return e.from == "pkg/api" && e.to != e.from && within(e.to, "pkg") },
	},
	{
		name:   "services meet only through proto",
		reason: "a service is deployed by itself and talks to another version of its peers; a Go import would hide a protocol",
		forbids: func(e edge) bool {
			from, to := service(e.from), service(e.to)
			return from != "" && to != "" && from != to
		},
	},
	{
		name:   "loadtest imports nothing of ours but proto",
		reason: "whoever measures a token stream imports it: it must bring no engine, no service and no embedded server along",
		forbids: func(e edge) bool {
			return within(e.from, "loadtest") && within(e.to, "pkg", "services", "cmd")
		},
	},
	{
		name:   "the client imports nothing of ours but proto",
		reason: "everybody's programs import it, and get what it brings along",
		forbids: func(e edge) bool {
			return within(e.from, "client") && within(e.to, "pkg", "services", "cmd", "loadtest", "simulate")
		},
	},
	{
		name:   "only commands import the client",
		reason: "parts of a mesh talk to each other over pkg/rpc: a client retries for people, and a part has its own policy",
		forbids: func(e edge) bool {
			return within(e.to, "client") && !within(e.from, "client", "cmd", "examples", "integration")
		},
	},
	{
		name:   "only the binary imports loadtest",
		reason: "an instrument stands beside what it measures: a service that needs it would measure itself",
		forbids: func(e edge) bool {
			data := within(e.from, "simulate") && within(e.to, "loadtest/workload", "loadtest/record")
			return within(e.to, "loadtest") && !within(e.from, "loadtest", "cmd", "integration") && !data
		},
	},
	{
		name:   "simulate imports no service",
		reason: "it drives the cores that services drive: what it would need of a service is policy outside of a core",
		forbids: func(e edge) bool {
			return within(e.from, "simulate") && within(e.to, "services", "cmd") || within(e.to, "simulate") && within(e.from, "pkg", "services", "loadtest")
		},
	},
	{
		name:   "nothing imports the binary",
		reason: "cmd/tandem joins everything, embedded servers included; only the suite that runs it may look inside",
		forbids: func(e edge) bool {
			return within(e.to, "cmd") && !within(e.from, "cmd", "integration", "loadtest", "simulate") // which have rules of their own
		},
	},
	{
		name:    "nothing imports the suite",
		reason:  "integration is the roof: it needs every module, so none may need it",
		forbids: func(e edge) bool { return within(e.to, "integration") && !within(e.from, "integration") },
	},
	{
		name:   "proto imports nothing of ours",
		reason: "clients in Go import proto alone, and it is generated: logic in it would be lost",
		forbids: func(e edge) bool {
			return within(e.from, "proto") && within(e.to, "client", "pkg", "services", "loadtest", "cmd", "integration", "tools")
		},
	},
	{
		name:   "cgo only in the engines",
		reason: "C is not checked by the race detector, does not stop at a panic and does not build everywhere; it is worth it where arithmetic is",
		forbids: func(e edge) bool {
			return e.to == "C" && !within(e.from, "pkg/engine/cpu", "pkg/engine/cuda")
		},
	},
	{
		name:   "embedded servers only in the binary and in tests",
		reason: "etcd's and NATS's servers bring a hundred packages; a service is a client of them and must not grow with them",
		forbids: func(e edge) bool {
			if !within(e.to, "go.etcd.io/etcd/server", "github.com/nats-io/nats-server") {
				return false
			}
			return !e.test && !testHelper(e.from) && !within(e.from, "cmd/tandem", "integration")
		},
	},
	{
		name:    "commands only in the binary",
		reason:  "a service gets a validated configuration and writes to a logger; flags' trees and terminals are the binary's",
		forbids: func(e edge) bool { return within(e.to, "github.com/spf13/cobra") && !within(e.from, "cmd/tandem") },
	},
	{
		name:   "test helpers stay in tests",
		reason: "fakes in a release are a way around every check",
		forbids: func(e edge) bool {
			fake := testHelper(e.to) || within(e.to, "testing", "go.uber.org/goleak", "pgregory.net/rapid")
			return fake && !e.test && !testHelper(e.from) && !within(e.from, "integration")
		},
	},
	{
		name:   "the core imports no driver",
		reason: "a core decides and a driver runs it: one that knew its driver could have no other",
		forbids: func(e edge) bool {
			driver := e.to == "pkg/kvtransfer" || within(e.to, "pkg/coreloop", "pkg/workerdriver", "pkg/membership", "pkg/signals", "pkg/eventlog", "pkg/replay")
			return driver && !e.test && inCore(e.from)
		},
	},
	{
		name:   "the core does no input or output",
		reason: "one code serves live traffic and simulation only if it takes events and gives actions, and does nothing else",
		forbids: func(e edge) bool {
			// The names of gRPC's statuses, in grpc/codes and grpc/status, are plain values.
			io := e.to == "google.golang.org/grpc" || within(e.to, "net", "os", "github.com/nats-io", "go.etcd.io")
			return io && !e.test && inCore(e.from)
		},
	},
}

// violations names every rule that every edge breaks.
func violations(edges []edge) []string {
	var found []string
	for _, e := range edges {
		e.from, e.to = strings.TrimPrefix(e.from, ours), strings.TrimPrefix(e.to, ours)
		for _, rule := range directionRules {
			if rule.forbids(e) {
				found = append(found, e.file+": "+e.from+" imports "+e.to+", but "+rule.name+": "+rule.reason)
			}
		}
	}
	return found
}

func TestImportsKeepTheirDirection(t *testing.T) {
	root := checkoutRoot(t)
	edges := importEdges(t, root)
	if len(edges) < 10 {
		t.Fatalf("only %d imports found: the checker looks in the wrong place", len(edges))
	}
	for _, v := range violations(edges) {
		t.Error(v)
	}
}

// A forbidden server can also come through somebody else's package.
func TestServicesDoNotLinkEmbeddedServers(t *testing.T) {
	root := checkoutRoot(t)
	list := exec.Command("go", "list", "-e", "-f", "{{.ImportPath}}", "./pkg/...", "./services/...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := slices.DeleteFunc(strings.Fields(string(out)), testHelper)
	closure := exec.Command("go", append([]string{"list", "-e", "-deps", "-f", "{{.ImportPath}}"}, packages...)...)
	closure.Dir = root
	if out, err = closure.Output(); err != nil {
		t.Fatalf("go list -deps: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		if within(path, "go.etcd.io/etcd/server", "github.com/nats-io/nats-server") {
			t.Errorf("pkg or a service links %s: see `go mod why -m` for the way it came", path)
		}
	}
}

func TestEveryDirectionRuleCanFail(t *testing.T) {
	const (
		etcd = "go.etcd.io/etcd/server/v3/embed"
		nats = "github.com/nats-io/nats-server/v2/server"
	)
	cases := []struct {
		edge edge
		// rule that the edge breaks; "" where it is allowed.
		rule string
	}{
		{edge{from: ours + "pkg/rpc", to: ours + "services/router"}, "pkg imports no services"},
		{edge{from: ours + "pkg/rpc", to: ours + "services/router", test: true}, "pkg imports no services"},
		{edge{from: ours + "pkg/rpc", to: ours + "proto/tandem/worker/v1"}, ""},
		{edge{from: ours + "pkg/api", to: ours + "pkg/rpc"}, "the protocol's words import only proto"},
		{edge{from: ours + "pkg/api", to: ours + "proto/tandem/worker/v1"}, ""},
		{edge{from: ours + "services/router", to: ours + "services/decode"}, "services meet only through proto"},
		{edge{from: ours + "services/router", to: ours + "services/kvtransfer"}, "services meet only through proto"},
		{edge{from: ours + "services/kvtransfer", to: ours + "services/decode"}, "services meet only through proto"},
		{edge{from: ours + "services/prefill", to: ours + "services/decode"}, "services meet only through proto"},
		{edge{from: ours + "services/prefill", to: ours + "services/kvtransfer"}, "services meet only through proto"},
		{edge{from: ours + "services/prefill", to: ours + "services/kvtransfer", test: true}, "services meet only through proto"},
		{edge{from: ours + "services/prefill", to: ours + "pkg/kvtransfer/sender"}, ""},
		{edge{from: ours + "services/router", to: ours + "services/router/policy"}, ""},
		{edge{from: ours + "loadtest/drive", to: ours + "pkg/rpc"}, "loadtest imports nothing of ours but proto"},
		{edge{from: ours + "loadtest/drive", to: ours + "pkg/rpc", test: true}, "loadtest imports nothing of ours but proto"},
		{edge{from: ours + "loadtest", to: ours + "services/router"}, "loadtest imports nothing of ours but proto"},
		{edge{from: ours + "loadtest/report", to: ours + "cmd/tandem/mesh"}, "loadtest imports nothing of ours but proto"},
		{edge{from: ours + "loadtest", to: ours + "proto/tandem/inference/v1"}, ""},
		{edge{from: ours + "client", to: ours + "pkg/rpc"}, "the client imports nothing of ours but proto"},
		{edge{from: ours + "client", to: ours + "pkg/rpc", test: true}, "the client imports nothing of ours but proto"},
		{edge{from: ours + "client", to: ours + "proto/tandem/inference/v1"}, ""},
		{edge{from: ours + "services/router", to: ours + "client"}, "only commands import the client"},
		{edge{from: ours + "pkg/rpc", to: ours + "client"}, "only commands import the client"},
		{edge{from: ours + "cmd/tandem/internal/commands", to: ours + "client"}, ""},
		{edge{from: ours + "pkg/engine/simulated", to: ours + "loadtest/finetimer"}, "only the binary imports loadtest"},
		{edge{from: ours + "cmd/tandem/bench/contenders", to: ours + "loadtest"}, ""},
		{edge{from: ours + "simulate", to: ours + "loadtest/workload"}, ""},
		{edge{from: ours + "simulate", to: ours + "loadtest/drive"}, "only the binary imports loadtest"},
		{edge{from: ours + "simulate", to: ours + "services/router/serving"}, "simulate imports no service"},
		{edge{from: ours + "pkg/routing", to: ours + "simulate"}, "simulate imports no service"},
		{edge{from: ours + "services/router", to: ours + "cmd/tandem/mesh"}, "nothing imports the binary"},
		{edge{from: ours + "cmd/tandem", to: ours + "cmd/tandem/internal/commands"}, ""},
		{edge{from: ours + "integration", to: ours + "cmd/tandem/mesh", test: true}, ""},
		{edge{from: ours + "pkg/rpc", to: ours + "integration"}, "nothing imports the suite"},
		{edge{from: ours + "proto/tandem/worker/v1", to: ours + "pkg/kvcache"}, "proto imports nothing of ours"},
		{edge{from: ours + "proto/tandem/worker/v1", to: ours + "proto/tandem/inference/v1"}, ""},
		{edge{from: ours + "pkg/kvcache", to: "C"}, "cgo only in the engines"},
		{edge{from: ours + "pkg/engine", to: "C"}, "cgo only in the engines"},
		{edge{from: ours + "pkg/engine/cpux", to: "C"}, "cgo only in the engines"},
		{edge{from: ours + "pkg/engine/cpu", to: "C"}, ""},
		{edge{from: ours + "pkg/engine/cuda/driver", to: "C"}, ""},
		{edge{from: ours + "pkg/membership", to: etcd}, "embedded servers only in the binary and in tests"},
		{edge{from: ours + "services/router", to: nats}, "embedded servers only in the binary and in tests"},
		{edge{from: ours + "pkg/membership", to: etcd, test: true}, ""},
		{edge{from: ours + "pkg/signals/signalstest", to: nats}, ""},
		{edge{from: ours + "cmd/tandem/mesh", to: nats}, ""},
		{edge{from: ours + "pkg/membership", to: "go.etcd.io/etcd/client/v3"}, ""},
		{edge{from: ours + "services/decode", to: "github.com/spf13/cobra"}, "commands only in the binary"},
		{edge{from: ours + "services/decode", to: "github.com/spf13/pflag"}, ""},
		{edge{from: ours + "services/decode", to: ours + "pkg/engine/enginetest"}, "test helpers stay in tests"},
		{edge{from: ours + "services/decode", to: ours + "pkg/engine/enginetest", test: true}, ""},
		{edge{from: ours + "pkg/engine/cuda", to: ours + "pkg/engine/cuda/emulationtest/src"}, "test helpers stay in tests"},
		{edge{from: ours + "pkg/engine/cuda/emulationtest/src", to: ours + "pkg/engine/enginetest"}, ""},
		{edge{from: ours + "cmd/tandem/bench", to: ours + "loadtest/arrivals"}, ""},
		{edge{from: ours + "loadtest/arrivals", to: ours + "loadtest/arrivals/arrivalstest"}, "test helpers stay in tests"},
		{edge{from: ours + "loadtest/arrivals", to: "testing"}, "test helpers stay in tests"},
		{edge{from: ours + "pkg/rpc", to: "net/http/httptest"}, "test helpers stay in tests"},
		{edge{from: ours + "pkg/rpc/rpctest", to: "testing"}, ""},
		{edge{from: ours + "pkg/routing", to: ours + "pkg/coreloop"}, "the core imports no driver"},
		{edge{from: ours + "pkg/kvtransfer/sender", to: ours + "pkg/kvtransfer"}, "the core imports no driver"},
		{edge{from: ours + "pkg/scheduler", to: ours + "pkg/workerdriver"}, "the core imports no driver"},
		{edge{from: ours + "pkg/worker", to: ours + "pkg/scheduler"}, ""},
		{edge{from: ours + "pkg/kvtransfer/sender", to: ours + "pkg/kvtransfer/wire"}, ""},
		{edge{from: ours + "pkg/scheduler", to: "net/http"}, "the core does no input or output"},
		{edge{from: ours + "pkg/kvcache", to: "os"}, "the core does no input or output"},
		{edge{from: ours + "pkg/routing", to: "net"}, "the core does no input or output"},
		{edge{from: ours + "pkg/routing", to: "google.golang.org/grpc"}, "the core does no input or output"},
		{edge{from: ours + "pkg/routing", to: "google.golang.org/grpc/codes"}, ""},
		{edge{from: ours + "pkg/routing/routingtest", to: "net"}, ""},
		{edge{from: ours + "pkg/scheduler", to: "os", test: true}, ""},
	}
	broken := map[string]bool{}
	for _, c := range cases {
		found := violations([]edge{c.edge})
		switch {
		case c.rule == "" && len(found) != 0:
			t.Errorf("%s -> %s is refused: %v", c.edge.from, c.edge.to, found)
		case c.rule != "" && (len(found) != 1 || !strings.Contains(found[0], "but "+c.rule+":")):
			t.Errorf("%s -> %s: want only %q broken, got %v", c.edge.from, c.edge.to, c.rule, found)
		}
		broken[c.rule] = true
	}
	for _, rule := range directionRules {
		if !broken[rule.name] {
			t.Errorf("no case breaks %q: nobody knows that it can fail", rule.name)
		}
	}
}
