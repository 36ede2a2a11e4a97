package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
)

// Names of the folders of what is no part, among those of certificates.
const (
	etcdCerts = "etcd"
	natsCerts = "nats"
	// OperatorCerts are those of whoever operates the mesh.
	OperatorCerts = "operator"
)

const (
	// keyMode is that of the private keys that 'up' writes.
	keyMode = 0o600
	// renewEvery is how often 'up' looks which of its certificates to sign anew.
	renewEvery = 24 * time.Hour
)

// openCerts opens the authority of 'up --tls', and has it sign for the servers that 'up' runs
// and for the operator.
func (p *process) openCerts() (err error) {
	if p.certs == "" {
		return nil
	}
	if p.authority, err = authority.Open(p.certs); err != nil {
		return fmt.Errorf("--certs: %w", err)
	}
	operator := identity.Identity{Role: identity.Operator, Name: OperatorCerts}
	if _, err := p.certify(OperatorCerts, authority.Request{Identity: operator}); err != nil {
		return err
	}
	// The process's own connections to etcd and NATS are the router's.
	if p.options.TLS, err = p.certifyPart(p.parts[0]); err != nil {
		return err
	}
	p.etcdTLS, err = p.certify(etcdCerts, authority.Request{CommonName: etcdCerts, ServerOnly: true, Hosts: loopbackHosts})
	if err != nil {
		return err
	}
	p.natsTLS, err = p.certify(natsCerts, authority.Request{CommonName: natsCerts, ServerOnly: true, Hosts: loopbackHosts})
	return err
}

// certify has a certificate of the name, signed anew if the one of an earlier start will not do.
func (p *process) certify(name string, r authority.Request) (identity.Config, error) {
	p.signing.Lock()
	defer p.signing.Unlock()
	folder := filepath.Join(p.certs, name)
	if err := p.authority.Renew(folder, r, keyMode); err != nil {
		return identity.Config{}, fmt.Errorf("--certs: %w", err)
	}
	if p.signed == nil {
		p.signed = make(map[string]authority.Request)
	}
	p.signed[name] = r
	return authority.Config(folder), nil
}

// renewCerts signs certificates anew before they expire, for as long as the process runs. What
// uses them reads them again.
func (p *process) renewCerts(ctx context.Context) error {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		p.signing.Lock()
		signed := maps.Clone(p.signed)
		p.signing.Unlock()
		for name, r := range signed {
			if _, err := p.certify(name, r); err != nil {
				p.logger.Error("a certificate was not renewed: it will be tried again in a day", slog.String("name", name), slog.Any("error", err))
			}
		}
	}
}

func (p *process) certifyPart(part *part) (identity.Config, error) {
	hosts := ownHosts()
	if host, _, err := net.SplitHostPort(part.listen); err == nil && !isEvery(host) {
		hosts = append(hosts, host)
	}
	return p.certify(part.id, authority.Request{Identity: identity.Identity{Role: identity.Role(api.Name(part.role)), Name: part.id}, Hosts: hosts})
}

// newCerts gives all parts their certificates, if connections are encrypted.
func (p *process) newCerts(context.Context) (services []lifecycle.Service, err error) {
	if err := p.openCerts(); err != nil {
		return nil, err
	}
	for _, part := range p.parts {
		if err := p.secure(part); err != nil {
			return nil, err
		}
	}
	if p.authority != nil {
		services = append(services, lifecycle.Service{Name: "certificates", Run: p.renewCerts})
	}
	return services, p.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tandem_tls_certificate_expiry_timestamp_seconds", Help: "When the first of the parts' certificates, or of the authorities that signed them, expires, since 1970; 0: nothing is encrypted.",
	}, p.sources.expire))
}

// sources are the certificates of the parts that run, those of the autoscaler too. The zero value is
// ready to use, and safe for concurrent use.
type sources struct {
	mu   sync.Mutex
	open []*identity.Source
}

func (s *sources) add(source *identity.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, source)
}

func (s *sources) remove(source *identity.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o *identity.Source) bool { return o == source })
}

// expire is when the first one does, seconds since 1970; 0: there is none.
func (s *sources) expire() (first float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, source := range s.open {
		if expires := float64(source.Expires().Unix()); first == 0 || expires < first {
			first = expires
		}
	}
	return first
}

// secure gives a part its certificate, if connections are encrypted.
func (p *process) secure(part *part) (err error) {
	cfg := p.options.TLS
	if p.authority != nil {
		if cfg, err = p.certifyPart(part); err != nil {
			return err
		}
	}
	if !cfg.Enabled() {
		return nil
	}
	if part.tls, err = identity.Open(cfg, p.logger); err != nil {
		return err
	}
	if err := part.tls.BelongTo(identity.Role(api.Name(part.role)), part.id); err != nil {
		return err
	}
	p.sources.add(part.tls)
	return nil
}

var loopbackHosts = []string{"localhost", "127.0.0.1", "::1"}

// ownHosts are the names and addresses of this machine by which others may reach it.
func ownHosts() []string {
	hosts := slices.Clone(loopbackHosts)
	if name, err := os.Hostname(); err == nil && name != "" {
		hosts = append(hosts, name)
	}
	addresses, _ := net.InterfaceAddrs() // without them the machine is reached by name
	for _, a := range addresses {
		if network, is := a.(*net.IPNet); is && network.IP.IsGlobalUnicast() {
			hosts = append(hosts, network.IP.String())
		}
	}
	return hosts
}

// serverCredentials are those of a part's server, nil without TLS. With members only parts of the
// mesh and operators connect.
func (w *part) serverCredentials(members bool) credentials.TransportCredentials {
	if w.tls == nil {
		return nil
	}
	return w.tls.Server(members)
}

// peerCredentials are those of a part's connections to parts of the given roles, nil without TLS.
func (w *part) peerCredentials(roles ...identity.Role) credentials.TransportCredentials {
	if w.tls == nil {
		return nil
	}
	return w.tls.Peer(roles...)
}

// tlsListener is a listener whose connections are encrypted if the router's are, for HTTP/1.1.
func (w *part) tlsListener(listener net.Listener) net.Listener {
	if w.tls == nil {
		return listener
	}
	return tls.NewListener(listener, w.tls.ServerTLS(false, "http/1.1"))
}

// certsFolder is where 'up --tls' keeps certificates unless told otherwise: beside the state that
// routers keep.
func certsFolder(getenv func(string) string) (string, error) {
	state := membership.LastViewConfig{StateDir: membership.StateAuto}
	folder := state.Folder(getenv)
	if folder == "" {
		return "", errors.New("--certs: this user has no folder for state: name one")
	}
	return filepath.Join(folder, "certs"), nil
}
