package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority/authoritytest"
)

// timeout bounds what has to happen.
const timeout = time.Minute

// TestNATSRights: the configuration of deploy/ lets each role publish its own signals, and nobody
// in without a certificate.
func TestNATSRights(t *testing.T) {
	certs := authoritytest.Parts(t)
	for _, config := range []string{"compose/nats-tls.conf", "k8s/components/mtls-servers/nats.conf"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", config))
		if err != nil {
			t.Fatal(err)
		}
		here := strings.NewReplacer("/certs/tls.crt", certs("nats").CertFile, "/certs/tls.key", certs("nats").KeyFile, "/certs/ca.crt", certs("nats").CAFile)
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(here.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
		options, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Fatal(err)
		}
		options.Host, options.Port, options.HTTPPort, options.HTTPHost, options.NoLog, options.NoSigs = "127.0.0.1", server.RANDOM_PORT, 0, "", true, true
		instance, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		instance.Start()
		t.Cleanup(func() { instance.Shutdown(); instance.WaitForShutdown() })
		if !instance.ReadyForConnections(timeout) {
			t.Fatal("NATS does not take connections")
		}
		testNATSRights(t, instance.ClientURL(), certs)
	}
}

func testNATSRights(t *testing.T, url string, certs func(string) identity.Config) {
	connect := func(cfg identity.Config) (*nats.Conn, chan error, error) {
		source, err := identity.Open(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 16)
		conn, err := nats.Connect(url, nats.Secure(source.ClientTLS()), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case refused <- err:
			default:
			}
		}))
		return conn, refused, err
	}
	if conn, _, err := connect(identity.Config{CAFile: certs("nats").CAFile}); err == nil {
		conn.Close()
		t.Error("who shows no certificate comes in")
	}
	if conn, _, err := connect(certs("etcd")); err == nil {
		conn.Close()
		t.Error("a certificate of no role comes in")
	}
	router, refused, err := connect(certs("router"))
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	heard, err := router.SubscribeSync("tandem.v1.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Flush(); err != nil || len(refused) > 0 {
		t.Fatalf("a router cannot listen: %v, %d errors", err, len(refused))
	}
	for _, c := range []struct{ role, may, never string }{
		{"prefill", "tandem.v1.load.prefill.p", "tandem.v1.load.decode.d"},
		{"prefill", "tandem.v1.kv.p", "tandem.v1.queue.fable"},
		{"decode", "tandem.v1.load.decode.d", "tandem.v1.load.prefill.p"},
		{"decode", "tandem.v1.kv.d", "tandem.v1.view"},
		{"kvtransfer", "tandem.v1.load.kvtransfer.s", "tandem.v1.router.r"},
		{"router", "tandem.v1.queue.fable", "tandem.v1.kv.p"},
		{"router", "tandem.v1.router.r", "tandem.v1.load.decode.d"},
		{"operator", "", "tandem.v1.load.decode.d"},
	} {
		conn, refused, err := connect(certs(c.role))
		if err != nil {
			t.Fatalf("%s: %v", c.role, err)
		}
		if c.may != "" {
			if err := conn.Publish(c.may, []byte(c.role)); err != nil {
				t.Fatal(err)
			}
			if m, err := heard.NextMsg(timeout); err != nil || m.Subject != c.may {
				t.Errorf("%s publishes %s: %v", c.role, c.may, err)
			}
		}
		if err := conn.Publish(c.never, []byte(c.role)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "ermissions") {
				t.Errorf("%s publishes %s: %v", c.role, c.never, err)
			}
		case <-time.After(timeout):
			t.Errorf("%s may publish %s", c.role, c.never)
		}
		conn.Close()
	}
	if m, err := heard.NextMsg(time.Millisecond); err == nil {
		t.Errorf("heard %s of %s", m.Subject, m.Data)
	}
}
