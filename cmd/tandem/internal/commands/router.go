package commands

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// defaultAddr is where `tandem up` listens.
const defaultAddr = "127.0.0.1:7070"

// maxMessageBytes is the largest message that a command takes from a router: a
// view of thousands of workers is a few megabytes.
const maxMessageBytes = 64 << 20

// dial makes a connection to addr, which the caller closes; without credentials it is not
// encrypted. It does not wait for the other side: the first call fails if nobody is there.
//
// Without a host it is this one, as for what listens.
func dial(addr string, as caller) (*grpc.ClientConn, error) {
	if err := checkRouterAddress(addr); err != nil {
		return nil, err
	}
	if strings.HasPrefix(addr, ":") {
		addr = "127.0.0.1" + addr
	}
	return rpc.Dial(addr, rpc.ClientConfig{Name: "tandem", MaxReceiveBytes: maxMessageBytes, Credentials: as.transport, APIKey: as.apiKey})
}

// checkRouterAddress says what is wrong with an address, which is seen before anybody is called.
func checkRouterAddress(addr string) error {
	scheme, _, isURL := strings.Cut(addr, "://")
	if isURL && scheme != "unix" {
		return fmt.Errorf("connect to %q: this is a URL: pass the router's gRPC address as host:port or unix:///path", addr)
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && !isURL && port != "" {
		if _, err := net.LookupPort("tcp", port); err != nil {
			return fmt.Errorf("connect to %q: %q is not a port: give host:port or unix:///path", addr, port)
		}
	}
	return nil
}

// dialRouters is dial for each of the addresses, which have commas between them. A Unix socket,
// whose path may have some, is one alone.
func dialRouters(addrs string, as caller) (*client.Client, error) {
	each := strings.Split(addrs, ",")
	if strings.HasPrefix(addrs, api.UnixScheme) {
		each = []string{addrs}
	}
	var conns []*grpc.ClientConn
	for _, addr := range each {
		conn, err := dial(addr, as)
		if err != nil {
			_ = client.Over(conns).Close() // nothing is connected yet
			return nil, err
		}
		conns = append(conns, conn)
	}
	if len(conns) == 1 {
		return client.Over(conns, client.WithAttempts(1)), nil // who waits sees at once what is wrong
	}
	return client.Over(conns), nil
}

// operator is how a command calls Control, which routers do not serve where clients
// connect.
type operator struct {
	access
	control string
	cmd     *cobra.Command
}

// addControl adds --control to a command for operators.
func addControl(cmd *cobra.Command) *operator {
	o := &operator{cmd: cmd}
	o.add(cmd)
	annotate(cmd, annotationVariables, variablesWarn)
	cmd.Flags().StringVar(&o.control, "control", mesh.DefaultControl, "gRPC address of the router for operators (its --control): host:port or unix:///path")
	return o
}

// commandLine is what to type to run another command for operators at the same router.
func (o *operator) commandLine(name string) string {
	line := o.cmd.Root().DisplayName() + " " + name
	if o.control != mesh.DefaultControl {
		line += " --control " + shellQuoted(o.control)
	}
	return line
}

// connect is dial to the router's address for operators.
func (o *operator) connect() (*grpc.ClientConn, error) {
	as, err := o.open(o.cmd)
	if err != nil {
		return nil, err
	}
	conn, err := dial(o.control, as)
	if err != nil {
		return nil, usageError(o.cmd, "--control: "+err.Error())
	}
	return conn, nil
}

// ask makes one call of a service for operators, on a connection of its own.
func ask[C, Q, A any](
	o *operator, service func(grpc.ClientConnInterface) C, call func(C, context.Context, Q, ...grpc.CallOption) (A, error), question Q,
) (answer A, err error) {
	conn, err := o.connect()
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	answer, err = call(service(conn), o.cmd.Context(), question)
	return answer, o.failure(err, false)
}

// failure is callFailure of a call to Control.
func (o *operator) failure(err error, answered bool) error {
	const by = "by default " + mesh.DefaultControl + " on the router's host"
	return callFailure(err, answered, callee{
		address: o.control, pass: "pass --control with the router's address for operators (" + by + ")",
		otherwise: "does not serve operators: pass --control with the router's address for them (" + by + ")",
		unreached: "cannot reach a router at %s: start one with 'tandem up', or pass --control; for a router in a container, run this command in the container",
	})
}
