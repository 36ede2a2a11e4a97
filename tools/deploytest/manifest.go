// Package deploytest checks what deploy/ holds without a cluster: manifests as
// Kustomize renders them, against the API server's own types, defaults and
// validation, and against what this project knows of its parts.
//
// Only its tests and .ci/run use it. It stands in a module outside go.work, since
// the Kubernetes API would raise everybody's dependencies. It starts no goroutines
// and runs no process but the binary of cmd/tandem, which knows its own flags.
package deploytest

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Manifests are the objects of one overlay, decoded and defaulted as by the API
// server.
type Manifests struct {
	Deployments  map[string]*apps.Deployment
	StatefulSets map[string]*apps.StatefulSet
	Jobs         map[string]*batch.Job
	Services     map[string]*core.Service
	ConfigMaps   map[string]*core.ConfigMap
	Accounts     map[string]*core.ServiceAccount
	Namespaces   map[string]*core.Namespace
	Budgets      map[string]*policy.PodDisruptionBudget
	Policies     map[string]*networking.NetworkPolicy
	Scalers      map[string]*autoscaling.HorizontalPodAutoscaler
	Scaled       map[string]*ScaledObject
	Monitors     map[string]*PodMonitor
	Certificates map[string]*Certificate
	Issuers      map[string]*Issuer
	// Claims and PriorityClasses are names; Replicas are the deployments that say how
	// many pods they want.
	Claims, PriorityClasses, Replicas map[string]bool
}

// Render is what Kustomize makes of a folder, as YAML.
func Render(folder string) ([]byte, error) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", folder, err)
	}
	return rendered.AsYaml()
}

// Parse reads YAML documents and returns every problem that the API server would
// have with one of them.
func Parse(text []byte) (*Manifests, error) {
	m := &Manifests{
		Deployments: map[string]*apps.Deployment{}, StatefulSets: map[string]*apps.StatefulSet{}, Jobs: map[string]*batch.Job{}, Services: map[string]*core.Service{},
		ConfigMaps: map[string]*core.ConfigMap{}, Accounts: map[string]*core.ServiceAccount{}, Namespaces: map[string]*core.Namespace{},
		Budgets: map[string]*policy.PodDisruptionBudget{}, Policies: map[string]*networking.NetworkPolicy{},
		Scalers: map[string]*autoscaling.HorizontalPodAutoscaler{}, Scaled: map[string]*ScaledObject{}, Monitors: map[string]*PodMonitor{},
		Certificates: map[string]*Certificate{}, Issuers: map[string]*Issuer{},
		Claims: map[string]bool{}, PriorityClasses: map[string]bool{}, Replicas: map[string]bool{},
	}
	var problems []error
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer func() { _ = documents.Close() }()
	// Kustomize writes far less than this for one object.
	buffer := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return m, errors.Join(problems...)
		}
		if err != nil {
			return nil, fmt.Errorf("read documents: %w", err)
		}
		if len(bytes.TrimSpace(buffer[:n])) == 0 {
			continue
		}
		if err := m.take(bytes.Clone(buffer[:n])); err != nil {
			problems = append(problems, err)
		}
	}
}

// take decodes one document into its place.
func (m *Manifests) take(document []byte) error {
	var kind runtime.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return fmt.Errorf("a document is no object: %w", err)
	}
	switch kind.Kind {
	case "ScaledObject":
		return put(m.Scaled, document)
	case "PodMonitor":
		return put(m.Monitors, document)
	}
	switch kind.APIVersion + "/" + kind.Kind {
	case "cert-manager.io/v1/Certificate":
		return put(m.Certificates, document)
	case "cert-manager.io/v1/Issuer":
		return put(m.Issuers, document)
	}
	object, err := decode(document)
	if err != nil {
		return err
	}
	switch o := object.(type) {
	case *apps.Deployment:
		m.Deployments[o.Name] = o
		return m.takeReplicas(o, document)
	case *apps.StatefulSet:
		m.StatefulSets[o.Name] = o
	case *batch.Job:
		m.Jobs[o.Name] = o
	case *core.Service:
		m.Services[o.Name] = o
	case *core.ConfigMap:
		m.ConfigMaps[o.Name] = o
	case *core.ServiceAccount:
		m.Accounts[o.Name] = o
	case *core.Namespace:
		m.Namespaces[o.Name] = o
	case *policy.PodDisruptionBudget:
		m.Budgets[o.Name] = o
	case *networking.NetworkPolicy:
		m.Policies[o.Name] = o
	case *autoscaling.HorizontalPodAutoscaler:
		m.Scalers[o.Name] = o
	default:
		m.rest(object)
	}
	return nil
}
