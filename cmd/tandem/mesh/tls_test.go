package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// certificates are those of an authority, each in a folder of its own.
type certificates struct {
	*authority.Authority
	t      *testing.T
	folder string
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	return &certificates{a, t, folder}
}

// of is the certificate of a role, whose name is name; without a role, of a server.
func (c *certificates) of(role identity.Role, name string) identity.Config {
	return c.signed(name, authority.Request{Identity: identity.Identity{Role: role, Name: name}, Hosts: []string{"localhost", "127.0.0.1"}})
}

func (c *certificates) signed(folder string, r authority.Request) identity.Config {
	c.t.Helper()
	if r.Identity.Role == "" {
		r.Identity, r.CommonName = identity.Identity{}, folder
	}
	folder = filepath.Join(c.folder, folder)
	if err := c.Issue(folder, r, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return authority.Config(folder)
}

// caller are the credentials of a client that shows the certificate and believes any of the
// authority's, whatever its role and name.
func (c *certificates) caller(shown identity.Config) credentials.TransportCredentials {
	c.t.Helper()
	return c.source(shown).Peer(identity.Roles()...)
}

func (c *certificates) source(shown identity.Config) *identity.Source {
	c.t.Helper()
	shown.CAFile = filepath.Join(c.folder, authority.CAFile)
	source, err := identity.Open(shown, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return source
}

func dialTLS(t *testing.T, address string, transport credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{Credentials: transport})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// secured is a mesh of processes whose connections are encrypted: each part has its own
// certificate, and so have etcd and NATS.
type secured struct {
	*certificates
	options             mesh.Options
	etcd, nats          string
	router, prefill     mesh.Part
	decode              mesh.Part
	prefillKV, decodeKV string
	operator            credentials.TransportCredentials
	asRouter            *identity.Source
}

// startSecured starts one, and stops it with the test.
func startSecured(t *testing.T) *secured {
	t.Helper()
	m := &secured{certificates: newCertificates(t), options: upOptions(t).Options, prefillKV: freeAddress(t), decodeKV: freeAddress(t)}
	etcd, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir(), TLS: m.of("", "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	server, err := embedded.StartNATS(embedded.NATSConfig{TLS: m.of("", "nats")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	m.etcd, m.nats = etcd.Endpoint(), server.URL()
	m.operator = m.caller(m.of(identity.Operator, "operator"))
	m.asRouter = m.source(m.of(identity.Router, "caller"))
	m.prefill = m.serve("prefill", m.prefillKV)
	m.decode = m.serve("decode", m.decodeKV)
	m.router = m.serve("router", "")
	return m
}

// serve starts a part and waits until it serves.
func (m *secured) serve(target, kv string) mesh.Part {
	m.t.Helper()
	o := mesh.ServeOptions{Options: m.options, Target: target, ID: target + "-1", Listen: "127.0.0.1:0", KVListen: kv}
	o.HTTP, o.Metrics, o.Control = "", "", ""
	if target == "router" {
		o.HTTP, o.Control = "127.0.0.1:0", "127.0.0.1:0"
		o.LastView.StateDir = membership.StateOff
	}
	o.Membership.Endpoints, o.Signals.URLs = []string{m.etcd}, []string{m.nats}
	o.TLS = m.of(identity.Role(target), target+"-1")
	o.KV.Socket = "off"
	ctx, stop := context.WithCancel(m.t.Context())
	ready, ended := make(chan mesh.Part, 2), make(chan error, 1)
	go func() {
		ended <- mesh.Serve(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(part mesh.Part) { ready <- part })
	}()
	m.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			m.t.Errorf("%s ended with %v", target, err)
		}
	})
	for {
		select {
		case part := <-ready:
			if part.Unserved == "" {
				return part
			}
		case err := <-ended:
			ended <- nil
			m.t.Fatalf("%s: %v", target, err)
		}
	}
}

// freeAddress is a loopback address that nobody listens on. Its port is below the kernel's
// ephemeral ports, so nobody gets it meanwhile by chance.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 16<<10+rand.IntN(16<<10))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port of 1000 is free")
	return ""
}

// generate asks over a new connection and returns the tokens.
func (m *secured) generate(ctx context.Context, transport credentials.TransportCredentials) (tokens []uint32, err error) {
	conn, err := rpc.Dial(m.router.Address, rpc.ClientConfig{Credentials: transport})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{
		Input: &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("once upon a time ", 40)}, MaxTokens: proto.Uint32(8),
		Sampling: &inferencev1.Sampling{Seed: proto.Uint64(1)}, Mode: inferencev1.Mode_MODE_DISAGGREGATED,
	})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		if err != nil {
			return nil, err
		}
		if delta := event.GetTokens(); delta != nil {
			tokens = append(tokens, delta.GetTokenIds()...)
		}
	}
}

// TestTLSRefusesStrangers: each port of an encrypted mesh, with each wrong certificate.
func TestTLSRefusesStrangers(t *testing.T) {
	m := startSecured(t)
	if tokens, err := m.generate(t.Context(), m.caller(identity.Config{})); err != nil || len(tokens) == 0 {
		t.Fatalf("a client without a certificate got %v, %v", tokens, err)
	}
	theirs := newCertificates(t)
	expired := m.signed("expired", authority.Request{
		Identity: identity.Identity{Role: identity.Router, Name: "router-1"}, NotBefore: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour,
	})
	callers := map[string]credentials.TransportCredentials{
		"in plain text":            nil,
		"nobody":                   m.caller(identity.Config{}),
		"another authority's":      m.caller(theirs.of(identity.Router, "router-1")),
		"expired":                  m.caller(expired),
		"a server that is no part": m.caller(m.of("", "etcd2")),
	}
	for _, role := range identity.Roles() {
		callers[string(role)] = m.caller(m.of(role, string(role)+"-x"))
	}
	for _, port := range []struct {
		name, address string
		members       bool // others do not even connect
		call          func(context.Context, *grpc.ClientConn) error
		may           []identity.Role
	}{
		{"identify", m.decode.Address, true, func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := workerv1.NewWorkerClient(c).Identify(ctx, &workerv1.IdentifyRequest{})
			return err
		}, []identity.Role{identity.Router, identity.Operator}},
		{"drain a worker", m.prefill.Address, true, func(ctx context.Context, c *grpc.ClientConn) error {
			return first(workerv1.NewWorkerClient(c).Drain(ctx, &workerv1.DrainRequest{Epoch: 1}))
		}, []identity.Role{identity.Router}},
		{"prefill", m.prefill.Address, true, func(ctx context.Context, c *grpc.ClientConn) error {
			return first(workerv1.NewPrefillClient(c).Run(ctx, &workerv1.PrefillRequest{}))
		}, []identity.Role{identity.Router}},
		{"decode", m.decode.Address, true, func(ctx context.Context, c *grpc.ClientConn) error {
			return first(workerv1.NewDecodeClient(c).Run(ctx, &workerv1.DecodeRequest{}))
		}, []identity.Role{identity.Router}},
		{"send KV to decode", m.decodeKV, true, sendKV, []identity.Role{identity.Prefill, identity.KVTransfer}},
		{"send KV to prefill", m.prefillKV, true, sendKV, []identity.Role{identity.Prefill, identity.KVTransfer}},
		{"list workers", m.router.Control, false, func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := controlv1.NewControlClient(c).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
			return err
		}, []identity.Role{identity.Operator}},
		{"set the policy", m.router.Control, false, func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := controlv1.NewControlClient(c).SetPolicy(ctx, &controlv1.SetPolicyRequest{})
			return err
		}, []identity.Role{identity.Operator}},
		{"drain", m.router.Control, false, func(ctx context.Context, c *grpc.ClientConn) error {
			return first(controlv1.NewControlClient(c).Drain(ctx, &controlv1.DrainRequest{WorkerId: "nobody"}))
		}, []identity.Role{identity.Operator}},
		{"explain", m.router.Control, false, func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := controlv1.NewControlClient(c).Explain(ctx, &controlv1.ExplainRequest{RequestId: "nobody's"})
			return err
		}, []identity.Role{identity.Operator}},
	} {
		for name, caller := range callers {
			conn := dialTLS(t, port.address, caller)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := port.call(ctx, conn)
			cancel()
			_ = conn.Close()
			role := identity.Role(name)
			want, isRole := codes.Unavailable, slices.Contains(identity.Roles(), role)
			switch {
			case slices.Contains(port.may, role):
				if reason := rpc.Reason(err); reason == api.ReasonWrongRole || reason == api.ReasonNoCertificate || grpcstatus.Code(err) == codes.Unavailable && reason == "" {
					t.Errorf("%s by %s, who may: %v", port.name, name, err)
				}
				continue
			case isRole:
				want = codes.PermissionDenied
			case !port.members && (name == "nobody" || name == "a server that is no part"):
				want = codes.Unauthenticated
			}
			if grpcstatus.Code(err) != want {
				t.Errorf("%s by %s: %v, want %v", port.name, name, err, want)
			}
		}
	}
}

// first is the first error of a stream that was just begun.
func first[T any](stream grpc.ServerStreamingClient[T], err error) error {
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

func sendKV(ctx context.Context, c *grpc.ClientConn) error {
	stream, err := kvtransferv1.NewKVTransferClient(c).Stream(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&kvtransferv1.SenderMessage{}) // Recv says what is wrong
	_, err = stream.Recv()
	return err
}

// TestTLSForgedRecord: whoever can write to etcd cannot have a router hand work to a worker
// that is none, or is another.
func TestTLSForgedRecord(t *testing.T) {
	m := startSecured(t)
	forger := membership.Config{Endpoints: []string{m.etcd}, TLS: m.of(identity.Prefill, "prefill-1")}
	members, err := membership.Connect(t.Context(), forger, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer members.Close()
	control := controlv1.NewControlClient(dialTLS(t, m.router.Control, m.operator))
	for id, transport := range map[string]credentials.TransportCredentials{
		"decode-plain": nil,
		"decode-role":  serverOf(t, m.of(identity.Prefill, "decode-role")),
		"decode-name":  serverOf(t, m.of(identity.Decode, "decode-7")),
		"decode-alien": serverOf(t, newCertificates(t).of(identity.Decode, "decode-alien")),
	} {
		self := membership.Identity{ID: id, Epoch: membership.NewEpoch(), Role: controlv1.Role_ROLE_DECODE}
		server := rpc.NewServer(rpc.ServerConfig{Credentials: transport})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		self.Addresses = []string{listener.Addr().String()}
		workerv1.RegisterWorkerServer(server, &impostor{record: self.Record()})
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) })
		registration := members.Register(self.Record())
		view := awaitWorker(t, control, id, func(v *controlv1.WorkerView) bool { return v.GetExcluded() != "" || v.GetConnected() })
		if view.GetConnected() {
			t.Errorf("%s is connected", id)
		}
		t.Logf("%s: %s", id, view.GetExcluded())
		if err := registration.Close(t.Context()); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = server.Stop(ctx)
		serving.Wait()
	}
	if tokens, err := m.generate(t.Context(), m.caller(identity.Config{})); err != nil || len(tokens) == 0 {
		t.Errorf("afterwards %v, %v", tokens, err)
	}
}

func serverOf(t *testing.T, cfg identity.Config) credentials.TransportCredentials {
	t.Helper()
	source, err := identity.Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source.Server(false)
}

// impostor says of itself what its record says.
type impostor struct {
	workerv1.UnimplementedWorkerServer
	record *controlv1.WorkerRecord
}

func (i *impostor) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	return &workerv1.IdentifyResponse{Record: i.record}, nil
}

// awaitWorker waits until the router says something of a worker.
func awaitWorker(t *testing.T, control controlv1.ControlClient, id string, is func(*controlv1.WorkerView) bool) *controlv1.WorkerView {
	t.Helper()
	stream, err := control.WatchWorkers(t.Context(), &controlv1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		views, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range views.GetWorkers() {
			if v.GetRecord().GetId() == id && is(v) {
				return v
			}
		}
	}
}

// TestTLSServers: etcd and NATS take nobody without a certificate, and HTTP is encrypted.
func TestTLSServers(t *testing.T) {
	m := startSecured(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	bare := identity.Config{CAFile: filepath.Join(m.folder, authority.CAFile)}
	if members, err := membership.Connect(ctx, membership.Config{Endpoints: []string{m.etcd}, TLS: bare}, quiet); err == nil {
		_ = members.Close()
		t.Error("etcd takes who shows no certificate")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(m.PEM())
	if conn, err := nats.Connect(m.nats, nats.Secure(&tls.Config{RootCAs: pool})); err == nil {
		conn.Close()
		t.Error("NATS takes who shows no certificate")
	}
	for _, c := range []struct {
		scheme string
		config *tls.Config
		want   bool
	}{{"https", &tls.Config{RootCAs: pool}, true}, {"https", nil, false}, {"http", nil, false}} {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: c.config, DisableKeepAlives: true}}
		response, err := client.Get(c.scheme + "://" + m.router.HTTP + "/v1/models")
		ok := err == nil && response.StatusCode == http.StatusOK
		if err == nil {
			_ = response.Body.Close()
		}
		if ok != c.want {
			t.Errorf("%s with %v: %v %v", c.scheme, c.config != nil, response, err)
		}
	}
}

// TestTLSRotation: every certificate and key is replaced under load, and then the authority; no
// request fails.
func TestTLSRotation(t *testing.T) {
	m := startSecured(t)
	client := m.caller(identity.Config{})
	want, err := m.generate(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	load, stop := context.WithCancel(t.Context())
	defer stop()
	var served, failed atomic.Int64
	var streams sync.WaitGroup
	for range 2 {
		streams.Go(func() {
			for load.Err() == nil {
				tokens, err := m.generate(t.Context(), client)
				if served.Add(1); err != nil || !slices.Equal(tokens, want) {
					failed.Add(1)
					t.Errorf("a request: %v, %v, want %v", tokens, err, want)
				}
			}
		})
	}
	ports := map[string]string{
		"router-1": m.router.Address, "prefill-1": m.prefill.Address, "decode-1": m.decode.Address,
	}
	bundle := func(pems ...[]byte) {
		for _, name := range []string{"router-1", "prefill-1", "decode-1", "etcd", "nats", "."} {
			write(t, filepath.Join(m.folder, name, authority.CAFile), slices.Concat(pems...))
		}
	}
	old := m.Authority
	second, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	for round, signer := range []*authority.Authority{old, second} {
		if signer == second { // believed by all before anybody shows it
			bundle(old.PEM(), second.PEM())
			m.Authority = second
			probe := m.source(m.signed("probe", authority.Request{Identity: identity.Identity{Role: identity.Router, Name: "probe"}}))
			for name, address := range ports {
				await(t, name+" to believe the second authority", func() bool { return handshakes(t, address, probe) })
			}
			m.Authority = old
		}
		before := served.Load()
		for name := range ports {
			role, _, _ := strings.Cut(name, "-")
			m.rotate(signer, name, authority.Request{Identity: identity.Identity{Role: identity.Role(role), Name: name}, Hosts: []string{"localhost", "127.0.0.1"}})
		}
		for _, name := range []string{"etcd", "nats"} {
			m.rotate(signer, name, authority.Request{CommonName: name, Hosts: []string{"localhost", "127.0.0.1"}})
		}
		for name, address := range ports {
			current, err := os.ReadFile(filepath.Join(m.folder, name, authority.CertFile))
			if err != nil {
				t.Fatal(err)
			}
			await(t, name+" to show its new certificate", func() bool { return shows(t, address, current, m.asRouter) })
		}
		await(t, "requests after the rotation", func() bool { return served.Load() >= before+20 })
		t.Logf("rotation %d: %d requests by then", round+1, served.Load())
	}
	bundle(second.PEM())
	await(t, "the old authority to be forgotten", func() bool { return !handshakes(t, m.decode.Address, m.asRouter) })
	before := served.Load()
	await(t, "requests without the old authority", func() bool { return served.Load() >= before+20 })
	stop()
	streams.Wait()
	t.Logf("%d requests, %d failed", served.Load(), failed.Load())
}

// rotate replaces a certificate and its key, but not the authorities that its holder believes.
func (m *secured) rotate(signer *authority.Authority, name string, r authority.Request) {
	m.t.Helper()
	certificate, key, err := signer.Sign(r)
	if err != nil {
		m.t.Fatal(err)
	}
	write(m.t, filepath.Join(m.folder, name, authority.KeyFile), key)
	write(m.t, filepath.Join(m.folder, name, authority.CertFile), certificate)
}

// write replaces a file as a whole.
func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func handshakes(t *testing.T, address string, as *identity.Source) bool {
	_, err := shown(t, address, as)
	return err == nil
}

// shows says whether a server shows the certificate.
func shows(t *testing.T, address string, want []byte, as *identity.Source) bool {
	got, err := shown(t, address, as)
	return err == nil && slices.Equal(got, want)
}

// shown is the certificate of a server that takes one's own.
func shown(t *testing.T, address string, as *identity.Source) ([]byte, error) {
	t.Helper()
	cfg := as.PeerTLS(identity.Roles()...)
	cfg.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// An HTTP/2 server begins with its settings, unless it refuses the certificate.
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 9)); err != nil {
		return nil, err
	}
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), nil
}

// await waits for what comes by itself, however busy the machine is.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(2 * time.Minute); !is(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// TestUpTLS: a whole mesh of one process, with etcd and NATS, from nothing.
func TestUpTLS(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Encrypt, o.Certs, o.KVStores = true, filepath.Join(t.TempDir(), "certs"), 1
	o.Store.Memory = 64 << 20
	for range 2 { // the second start has the first one's certificates
		ctx, cancel := context.WithCancel(ctx)
		var before []byte
		if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
			defer cancel()
			ca, err := os.ReadFile(filepath.Join(up.Certs, authority.CAFile))
			if err != nil || before != nil && !slices.Equal(before, ca) {
				t.Errorf("the authority: %v", err)
			}
			before = ca
			if !strings.HasPrefix(up.Etcd[0], "https://") || !strings.HasPrefix(up.NATS[0], "tls://") {
				t.Errorf("etcd at %s and NATS at %s", up.Etcd, up.NATS)
			}
			m := &secured{router: mesh.Part{Address: up.Address}}
			source, err := identity.Open(identity.Config{CAFile: filepath.Join(up.Certs, authority.CAFile)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tokens, err := m.generate(ctx, source.Client()); err != nil || len(tokens) == 0 {
				t.Errorf("tokens %v, %v", tokens, err)
			}
			operator, err := identity.Open(authority.Config(filepath.Join(up.Certs, mesh.OperatorCerts)), nil)
			if err != nil {
				t.Fatal(err)
			}
			views, err := controlv1.NewControlClient(dialTLS(t, up.Control, operator.Client())).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
			if err != nil || len(views.GetWorkers()) < 3 {
				t.Errorf("workers %v, %v", views, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

// TestUpRenewsCertificates: what 'up --tls' signed is valid for as long as it runs.
func TestUpRenewsCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		services, err := mesh.NewCerts(folder, quiet)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			time.Sleep(2 * authority.DefaultLifetime) // of the bubble
			synctest.Wait()
			stop()
		}()
		if err := lifecycle.Run(ctx, quiet, time.Minute, services...); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"prefill-1", "operator", "etcd", "nats"} {
			files := authority.Config(filepath.Join(folder, name))
			pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			if expires := pair.Leaf.NotAfter; time.Now().After(expires) {
				t.Errorf("that of %s has expired on %v, and it is %v", name, expires, time.Now())
			}
		}
	})
}

// TestCertificatesOfTheAutoscaler: the metric has those of workers that came later, for as long as
// they run.
func TestCertificatesOfTheAutoscaler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, day := t.TempDir(), 24*time.Hour
		first, err := mesh.CertificatesExpire(folder, "decode-2")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(day) // of the bubble
		if err := os.RemoveAll(filepath.Join(folder, "prefill-1")); err != nil {
			t.Fatal(err)
		}
		got, err := mesh.CertificatesExpire(folder, "decode-2") // whose certificate is still good
		if later := first[0] + day.Seconds(); err != nil || got != [3]float64{later, first[1], later} {
			t.Errorf("%v, %v; at first %v", got, err, first)
		}
	})
}

// TestTLSOfAnother: a part does not start with a certificate that others would refuse.
func TestTLSOfAnother(t *testing.T) {
	c := newCertificates(t)
	for _, wrong := range []identity.Config{c.of(identity.Decode, "decode-1"), c.of(identity.Prefill, "prefill-2"), c.of("", "etcd")} {
		o := mesh.ServeOptions{Options: upOptions(t).Options, Target: "prefill", ID: "prefill-1"}
		o.Membership.Endpoints, o.Signals.URLs = []string{"https://127.0.0.1:1"}, []string{"tls://127.0.0.1:1"}
		wrong.FlagPrefix = "tls-" // as its flags set it
		o.TLS = wrong
		if err := mesh.Serve(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil); err == nil || !strings.HasPrefix(err.Error(), "--tls-cert: ") {
			t.Errorf("%v: %v", wrong.CertFile, err)
		}
	}
}
