package mesh_test

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// certificate is that of a folder of the mesh's certificates; empty: the authority alone.
func (m *closedMesh) certificate(folder string) credentials.TransportCredentials {
	m.Helper()
	files := identity.Config{CAFile: filepath.Join(m.up.Certs, authority.CAFile)}
	if folder != "" {
		files = authority.Config(filepath.Join(m.up.Certs, folder))
	}
	source, err := identity.Open(files, nil)
	if err != nil {
		m.Fatal(err)
	}
	return source.Client()
}

// Where both certificates and keys are asked for, either lets an operator in. A client needs a
// key: no certificate stands for a tenant.
func TestCertificatesAndKeys(t *testing.T) {
	var log lines
	runClosed(t, &log, func(o *mesh.UpOptions) {
		o.Encrypt, o.Certs = true, filepath.Join(t.TempDir(), "certs")
	}, func(m *closedMesh) {
		authorityAlone := m.certificate("")
		clientsKey, _ := m.create("acme", nil, "generate")
		operator, worker := m.certificate(mesh.OperatorCerts), m.certificate("decode-1")
		for name, c := range map[string]struct {
			certificate      credentials.TransportCredentials
			key              string
			control, clients codes.Code
		}{
			"neither":                             {authorityAlone, "", codes.Unauthenticated, codes.Unauthenticated},
			"an operator's key":                   {authorityAlone, m.up.FirstKey, codes.OK, codes.OK},
			"an operator's certificate":           {operator, "", codes.OK, codes.Unauthenticated},
			"a worker's certificate":              {worker, "", codes.PermissionDenied, codes.Unauthenticated},
			"a worker's, with an operator's key":  {worker, m.up.FirstKey, codes.PermissionDenied, codes.OK},
			"an operator's, with a key of nobody": {operator, "tandem-0123456789ab-" + strings.Repeat("0", 64), codes.OK, codes.Unauthenticated},
			"an operator's, with a client's key":  {operator, clientsKey, codes.OK, codes.OK},
		} {
			dial := rpc.ClientConfig{Credentials: c.certificate, APIKey: c.key}
			operators, err := rpc.Dial(m.up.Control, dial)
			if err != nil {
				m.Fatal(err)
			}
			m.Cleanup(func() { _ = operators.Close() })
			clients, err := rpc.Dial(m.up.Address, dial)
			if err != nil {
				m.Fatal(err)
			}
			m.Cleanup(func() { _ = clients.Close() })
			if _, err := controlv1.NewControlClient(operators).ListWorkers(m.Context(), &controlv1.ListWorkersRequest{}); grpcstatus.Code(err) != c.control {
				m.Errorf("%s: ListWorkers: %v, want %s", name, err, c.control)
			}
			if _, err := controlv1.NewKeysClient(operators).ListKeys(m.Context(), &controlv1.ListKeysRequest{}); grpcstatus.Code(err) != c.control {
				m.Errorf("%s: ListKeys: %v, want %s", name, err, c.control)
			}
			if _, err := inferencev1.NewInferenceClient(clients).ListModels(m.Context(), &inferencev1.ListModelsRequest{}); grpcstatus.Code(err) != c.clients {
				m.Errorf("%s: ListModels: %v, want %s", name, err, c.clients)
			}
		}
		for _, caller := range []string{"nobody", "operator/operator", "decode/decode-1"} {
			if !strings.Contains(log.String(), `msg="control call" router=router-1 method=ListWorkers caller=`+caller) {
				m.Errorf("the log lacks a call by %s", caller)
			}
		}
	})
}

// With keys, tenants share no cached prefixes, whatever the flag for that says.
func TestTenantsWithKeysShareNoPrefixes(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		acme, _ := m.create("acme", nil, "generate")
		evil, _ := m.create("evil", nil, "generate")
		for _, c := range []struct {
			name, key, salt string
			cached          bool
		}{
			{"the first of its kind", acme, "", false},
			{"the same tenant again", acme, "", true},
			{"another tenant", evil, "", false},
			{"another tenant with the salt that the first one's requests have", evil, "4:acme:", false},
		} {
			usage, err := usageOf(m.Context(), inferencev1.NewInferenceClient(m.dial(m.up.Address, c.key)), &inferencev1.GenerateRequest{
				Tenant: "acme", CacheSalt: c.salt, Mode: inferencev1.Mode_MODE_DISAGGREGATED, MaxTokens: new(uint32(2)),
				Input: &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("Once upon a time there was a little fox who lived in a wood. ", 12)},
			})
			if err != nil {
				m.Fatal(err)
			}
			if got := usage.GetCachedTokens() > 0; got != c.cached {
				m.Errorf("%s: %d of %d prompt tokens were cached", c.name, usage.GetCachedTokens(), usage.GetPromptTokens())
			}
		}
	})
}
