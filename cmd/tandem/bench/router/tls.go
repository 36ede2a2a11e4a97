package router

import (
	"path/filepath"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// security is what all sides need for Plan.TLS; nil: they have none.
type security struct {
	folder  *tempfolder.Folder
	sources map[identity.Role]*identity.Source
}

func newSecurity() (_ *security, err error) {
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
		if err := a.Issue(folder, authority.Request{Identity: identity.Identity{Role: role, Name: name}, Hosts: []string{"127.0.0.1"}}, 0o600); err != nil {
			return nil, err
		}
		if s.sources[role], err = identity.Open(authority.Config(folder), nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *security) of(role identity.Role) string { return filepath.Join(s.folder.Path, string(role)) }

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

// client are those of who asks for tokens, and of the operator as well.
func (s *security) client() credentials.TransportCredentials {
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
	return []string{"--tls-cert", files.CertFile, "--tls-key", files.KeyFile, "--tls-ca", files.CAFile}
}
