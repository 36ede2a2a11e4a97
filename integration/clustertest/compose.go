package clustertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// composeFile is what users deploy, relative to the integration module, and
// controlFile what the suite adds: operators' calls from outside of the containers.
const (
	composeFile = "../deploy/compose/compose.yaml"
	controlFile = "clustertest/compose-control.yaml"
)

// Compose is a mesh in containers, made of deploy/compose.
type Compose struct {
	command []string // docker-compose, or docker compose
	files   []string // that the mesh is made of
	project string
	env     []string
	client  *Client
	scale   map[string]int    // by service
	cut     map[string]string // address of a container that is cut off
}

// StartCompose brings a project up for the rest of the test and takes it down,
// with its volumes, at the end. command is the compose to run, such as "docker
// compose"; env configures the project.
func StartCompose(t testing.TB, command, project string, prefill, decode int, env ...string) *Compose {
	t.Helper()
	c, at := newCompose(t, command, project, controlFile, prefill, decode, env)
	c.client = Dial(t, at.GRPC, at.Control)
	c.client.AwaitPool(t, controlv1.Role_ROLE_PREFILL, prefill)
	c.client.AwaitPool(t, controlv1.Role_ROLE_DECODE, decode)
	return c
}

// ComposeAddresses are where a mesh in containers is reached.
type ComposeAddresses struct{ GRPC, HTTP, Control string }

// newCompose is StartCompose with a file besides compose.yaml, and does not wait for workers.
func newCompose(t testing.TB, command, project, more string, prefill, decode int, env []string) (*Compose, ComposeAddresses) {
	t.Helper()
	grpc, http, control := FreeAddress(t), FreeAddress(t), FreeAddress(t)
	_, grpcPort, _ := net.SplitHostPort(grpc)
	_, httpPort, _ := net.SplitHostPort(http)
	_, controlPort, _ := net.SplitHostPort(control)
	c := &Compose{
		command: strings.Fields(command),
		files:   []string{composeFile, more},
		project: project,
		env:     append(env, "TANDEM_GRPC_PORT="+grpcPort, "TANDEM_HTTP_PORT="+httpPort, "TANDEM_CONTROL_PORT="+controlPort),
		scale:   map[string]int{"prefill": prefill, "decode": decode},
		cut:     make(map[string]string),
	}
	t.Cleanup(func() {
		if t.Failed() {
			// Of a request that went wrong, the end is not enough.
			t.Logf("%s: the containers said:\n%s", project, c.run(t, "logs", "--no-color", "--tail=400"))
		}
		c.run(t, "down", "--volumes", "--timeout=5")
	})
	c.up(t, "--timeout=40")
	return c, ComposeAddresses{grpc, http, control}
}

// Router is a client of the router through its published ports.
func (c *Compose) Router() *Client { return c.client }

// Cannot says why an ability lacks.
func (c *Compose) Cannot(string) string { return "containers have it" }

// run runs compose on the project and returns what it printed.
func (c *Compose) run(t testing.TB, args ...string) string {
	t.Helper()
	all := c.command[1:len(c.command):len(c.command)]
	for _, file := range c.files {
		all = append(all, "--file", file)
	}
	all = append(append(all, "--project-name", c.project), args...)
	return execute(t, c.env, c.command[0], all...)
}

func docker(t testing.TB, args ...string) string {
	t.Helper()
	return execute(t, nil, "docker", args...)
}

func execute(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	// Not the test's context: what undoes things runs after it has ended.
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// up makes the project what it should be, and leaves alone what it is already.
func (c *Compose) up(t testing.TB, more ...string) {
	t.Helper()
	args := []string{"up", "--detach", "--no-recreate"}
	// Pools that are not named go back to one worker.
	for _, service := range []string{"prefill", "decode"} {
		args = append(args, "--scale", fmt.Sprintf("%s=%d", service, c.scale[service]))
	}
	c.run(t, append(args, more...)...)
}

// Scale is of Scaler. A container that was killed is started again.
func (c *Compose) Scale(t testing.TB, role controlv1.Role, n int) {
	t.Helper()
	c.scale[api.Name(role)] = n
	// By themselves: etcd and NATS may be stopped, and stay so.
	c.up(t, "--no-deps", "--timeout=40", "prefill", "decode")
}

// RestartWorker is of WorkerRestarter.
func (c *Compose) RestartWorker(t testing.TB, worker string) {
	t.Helper()
	docker(t, "restart", "--time=40", container(t, worker))
}

// container is where a worker runs: a part without an --id has its host's name in
// the one that it gives itself, and a container's host name is its id.
func container(t testing.TB, worker string) string {
	t.Helper()
	parts := strings.Split(worker, "-")
	if len(parts) != 3 {
		t.Fatalf("worker %q has no container's id in its own", worker)
	}
	return parts[1]
}

// Kill is of Killer.
func (c *Compose) Kill(t testing.TB, worker string) {
	t.Helper()
	docker(t, "kill", container(t, worker))
}

// Pause is of Pauser.
func (c *Compose) Pause(t testing.TB, worker string) {
	t.Helper()
	docker(t, "pause", container(t, worker))
}

// Unpause is of Pauser.
func (c *Compose) Unpause(t testing.TB, worker string) {
	t.Helper()
	docker(t, "unpause", container(t, worker))
}

// Cut is of Cutter.
func (c *Compose) Cut(t testing.TB, worker string) {
	t.Helper()
	id := container(t, worker)
	c.cut[id] = c.address(t, id)
	docker(t, "network", "disconnect", c.network(), id)
}

// Heal is of Cutter. The engine gives the address that is free, which is the old
// one as long as nobody else came.
func (c *Compose) Heal(t testing.TB, worker string) {
	t.Helper()
	id := container(t, worker)
	docker(t, "network", "connect", c.network(), id)
	if address := c.address(t, id); address != c.cut[id] {
		t.Errorf("%s was %s and came back as %s, where nobody looks for it", worker, c.cut[id], address)
	}
	delete(c.cut, id)
}

func (c *Compose) network() string { return c.project + "_default" }

func (c *Compose) address(t testing.TB, id string) string {
	t.Helper()
	return strings.TrimSpace(docker(t, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", id))
}

// StopServers is of ServerStopper. With the containers, their names go away.
func (c *Compose) StopServers(t testing.TB) {
	t.Helper()
	c.run(t, "stop", "--timeout=5", "etcd", "nats")
}

// StartServers is of ServerStopper.
func (c *Compose) StartServers(t testing.TB) {
	t.Helper()
	c.run(t, "start", "etcd", "nats")
}

// RestartRouter is of RouterRestarter.
func (c *Compose) RestartRouter(t testing.TB) {
	t.Helper()
	c.run(t, "restart", "--timeout=40", "router")
}

// KillRouter is of RouterRestarter.
func (c *Compose) KillRouter(t testing.TB) {
	t.Helper()
	c.run(t, "kill", "router")
	c.run(t, "start", "router")
}
