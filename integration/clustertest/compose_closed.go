package clustertest

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// closedFile is what users add to compose.yaml to have connections encrypted.
const closedFile = "../deploy/compose/tls.yaml"

// ClosedCompose is a mesh in containers with certificates, which asks clients for keys.
type ClosedCompose struct {
	ComposeAddresses
	certs string
}

// StartClosedCompose is StartCompose with tls.yaml, and one worker of each kind. Its certificates are made as users make them, by the image's own 'tandem certs'.
func StartClosedCompose(t testing.TB, command, project string, env ...string) *ClosedCompose {
	t.Helper()
	c := &ClosedCompose{certs: filepath.Join(t.TempDir(), "certs")}
	if err := os.Mkdir(c.certs, 0o755); err != nil {
		t.Fatal(err)
	}
	docker(t, "run", "--rm", "--user", fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), "--volume", c.certs+":/certs",
		cmp.Or(os.Getenv("TANDEM_IMAGE"), "tandem:dev"), "certs", "--dir", "/certs", "--key-mode", "0644")
	_, c.ComposeAddresses = newCompose(t, command, project, closedFile, 1, 1, append(env, "TANDEM_COMPOSE_CERTS="+c.certs))
	operator := c.Operator(t)
	client := &Client{Control: controlv1.NewControlClient(operator), Inference: inferencev1.NewInferenceClient(operator), Conn: operator}
	client.AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1)
	client.AwaitPool(t, controlv1.Role_ROLE_DECODE, 1)
	return c
}

// CA is the file of the authority.
func (c *ClosedCompose) CA() string { return filepath.Join(c.certs, authority.CAFile) }

// Certificate are the credentials of a folder's certificate, such as "operator"; empty: the
// authority is believed, and no certificate shown.
func (c *ClosedCompose) Certificate(t testing.TB, folder string) credentials.TransportCredentials {
	t.Helper()
	files := identity.Config{CAFile: c.CA()}
	if folder != "" {
		files = authority.Config(filepath.Join(c.certs, folder))
	}
	source, err := identity.Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source.Client()
}

// Operator is a connection to where operators call, for the rest of the test.
func (c *ClosedCompose) Operator(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return c.Dial(t, c.Control, "operator", "")
}

// Dial connects to an address of the mesh for the rest of the test, with a certificate and a key;
// empty: without.
func (c *ClosedCompose) Dial(t testing.TB, address, certificate, key string) *grpc.ClientConn {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	// The certificate has this name.
	conn, err := rpc.Dial(net.JoinHostPort("localhost", port), rpc.ClientConfig{Credentials: c.Certificate(t, certificate), APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
