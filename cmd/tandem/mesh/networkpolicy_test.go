package mesh_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// networkPolicy is what is read of one of Kubernetes'.
type networkPolicy struct {
	Metadata struct{ Name string }
	Spec     struct {
		PodSelector podSelector `yaml:"podSelector"`
		Ingress     []struct {
			From []struct {
				PodSelector podSelector `yaml:"podSelector"`
			}
			Ports []struct{ Port string }
		}
	}
}

type podSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

func (s podSelector) role() identity.Role {
	return identity.Role(s.MatchLabels["app.kubernetes.io/component"])
}

// port is one of a role's pods.
type port struct {
	role identity.Role
	name string
}

// TestNetworkPoliciesSayWhatCertificatesDo: a network policy lets no role come to a port where it
// may call nothing, and each role reaches every service that its certificate may call.
func TestNetworkPoliciesSayWhatCertificatesDo(t *testing.T) {
	worker, kv := workerv1.Worker_ServiceDesc.ServiceName, kvtransferv1.KVTransfer_ServiceDesc.ServiceName
	services := map[port][]string{
		{identity.Prefill, "grpc"}:    {worker, workerv1.Prefill_ServiceDesc.ServiceName},
		{identity.Prefill, "kv"}:      {kv},
		{identity.Decode, "grpc"}:     {worker, workerv1.Decode_ServiceDesc.ServiceName},
		{identity.Decode, "kv"}:       {kv},
		{identity.KVTransfer, "grpc"}: {worker, kvtransferv1.BlockStore_ServiceDesc.ServiceName},
		{identity.KVTransfer, "kv"}:   {kv},
	}
	lets := make(map[port][]identity.Role)
	for _, file := range []string{"base", "components/block-store"} {
		for _, p := range networkPolicies(t, filepath.Join("..", "..", "..", "deploy", "k8s", filepath.FromSlash(file), "networkpolicy.yaml")) {
			for _, rule := range p.Spec.Ingress {
				for _, open := range rule.Ports {
					at := port{p.Spec.PodSelector.role(), open.Port}
					if _, known := services[at]; !known {
						if at.role != identity.Router && open.Port != "metrics" {
							t.Errorf("%s opens %v, of which nobody knows what it serves", p.Metadata.Name, at)
						}
						continue
					}
					if len(rule.From) == 0 {
						t.Errorf("%s lets everybody come to %v", p.Metadata.Name, at)
					}
					for _, from := range rule.From {
						lets[at] = append(lets[at], from.PodSelector.role())
					}
				}
			}
		}
	}
	reached := make(map[string][]identity.Role) // by service
	for at, names := range services {
		var may []identity.Role
		for _, service := range names {
			roles, all := rpc.Callers("/" + service + "/Any")
			if all {
				t.Errorf("all may call %s", service)
			}
			may = append(may, roles...)
			for _, role := range lets[at] {
				if slices.Contains(roles, role) {
					reached[service] = append(reached[service], role)
				}
			}
		}
		for _, role := range lets[at] {
			if !slices.Contains(may, role) {
				t.Errorf("%s may come to %v, but its certificate may call nothing there", role, at)
			}
		}
	}
	for _, names := range services {
		for _, service := range names {
			roles, _ := rpc.Callers("/" + service + "/Any")
			for _, role := range roles {
				if !slices.Contains(reached[service], role) {
					t.Errorf("%s may call %s, but no network policy lets it", role, service)
				}
			}
		}
	}
}

func networkPolicies(t *testing.T, file string) (all []networkPolicy) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var p networkPolicy
		err := documents.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, p)
	}
}
