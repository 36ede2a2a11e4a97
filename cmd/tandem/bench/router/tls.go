package router

import (
	"crypto/tls"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// security is what all sides need for Plan.TLS and Plan.Auth; nil: they have none.
type security struct {
	folder  *tempfolder.Folder
	sources map[identity.Role]*identity.Source
	clients *identity.Source // without a certificate, as clients are
	key     string           // of the clients; empty: nobody asks for one
	record  *controlv1.ApiKey
}

func newSecurity(auths bool) (_ *security, err error) {
	s := &security{sources: map[identity.Role]*identity.Source{}}
	if s.folder, err = tempfolder.Make("certs"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.folder.Remove()
		}
	}()
	a, err := authority.New()
	if err != nil {
		return nil, err
	}
	for role, name := range map[identity.Role]string{
		identity.Router: "router-1", identity.Prefill: idPrefix, identity.Decode: idPrefix, identity.Operator: idPrefix,
	} {
		folder := s.of(role)
		if err := a.Issue(folder, authority.Request{Identity: identity.Identity{Role: role, Name: name}, Hosts: []string{routerHost}}, 0o600); err != nil {
			return nil, err
		}
		if s.sources[role], err = identity.Open(authority.Config(folder), nil); err != nil {
			return nil, err
		}
	}
	if s.clients, err = identity.Open(identity.Config{CAFile: authority.Config(s.of(identity.Router)).CAFile}, nil); err != nil {
		return nil, err
	}
	if auths {
		s.key, s.record = auth.NewKey(time.Now())
		s.record.Tenant, s.record.Scopes = "bench", []string{string(auth.Generate)}
		s.record.Limits = &controlv1.TenantLimits{
			RequestsPerMinute: farLimit, TokensPerMinute: farLimit, Concurrency: farLimit, PromptTokens: farLimit, AnswerTokens: farLimit,
		}
	}
	return s, nil
}

// farLimit is what no bench comes near to.
const farLimit = 1 << 40

func (s *security) of(role identity.Role) string { return filepath.Join(s.folder.Path, string(role)) }

// routerHost is where the router listens.
const routerHost = "127.0.0.1"

func (s *security) close() error {
	if s == nil {
		return nil
	}
	return s.folder.Remove()
}

// worker are the credentials of a worker's server.
func (s *security) worker(role controlv1.Role) credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s.sources[identity.Role(api.Name(role))].Server(true)
}

// client are those of who asks for tokens.
func (s *security) client() credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s.clients.Client()
}

// clientTLS is the same for HTTP.
func (s *security) clientTLS() *tls.Config {
	if s == nil {
		return nil
	}
	cfg := s.clients.ClientTLS()
	cfg.ServerName = routerHost
	return cfg
}

// authorization is what the header of that name says; empty: none is sent.
func (s *security) authorization() string {
	if s == nil || s.key == "" {
		return ""
	}
	return "Bearer " + s.key
}

// operator are the credentials of who asks the router for its workers.
func (s *security) operator() credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s.sources[identity.Operator].Client()
}

// router are the arguments of the router.
func (s *security) router() []string {
	if s == nil {
		return nil
	}
	files := authority.Config(s.of(identity.Router))
	arguments := []string{"--tls-cert", files.CertFile, "--tls-key", files.KeyFile, "--tls-ca", files.CAFile}
	if s.key != "" {
		arguments = append(arguments, "--auth", "required")
	}
	return arguments
}
