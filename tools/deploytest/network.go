package deploytest

import (
	"net"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkNetwork checks that only routers can be reached from outside the mesh, and
// that services and network policies name what is there.
func (m *Manifests) checkNetwork(r *report) {
	for name, s := range m.Services {
		selected := m.selected(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		if len(selected) != 1 {
			r.add("service %s selects %d pools, want one", name, len(selected))
			continue
		}
		p := selected[0]
		if s.Spec.Type != core.ServiceTypeClusterIP {
			r.add("service %s is of type %s: what publishes a router stands before it", name, s.Spec.Type)
		}
		if target := p.target(); target == "prefill" || target == "decode" {
			r.add("service %s stands before %s: only routers are reached by one", name, p.name)
		}
		for _, port := range s.Spec.Ports {
			if !p.hasPort(port.TargetPort) {
				r.add("service %s: %s has no port %s", name, p.name, port.TargetPort.String())
			}
		}
	}
	covered := map[string]bool{}
	for name, n := range m.Policies {
		selected := m.selected(&n.Spec.PodSelector)
		if len(selected) == 0 {
			r.add("network policy %s selects nothing", name)
		}
		for _, p := range selected {
			covered[p.name] = true
			for _, rule := range n.Spec.Ingress {
				m.checkIngress(r, name, p, rule)
			}
		}
	}
	for _, p := range m.pools() {
		if !covered[p.name] {
			r.add("%s: no network policy selects it: everybody may connect", p.name)
		}
		if p.target() == "router" {
			checkControl(r, p.name, m.environment(p)["TANDEM_CONTROL"])
		}
	}
}

// checkControl checks that operators' calls, which ask nobody who they are, are
// answered inside of the router's own container. Empty is the default, which is so.
func checkControl(r *report, name, address string) {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	if address != "" && !strings.HasPrefix(address, "unix://") && (err != nil || ip == nil || !ip.IsLoopback()) {
		r.add("%s: TANDEM_CONTROL is %s: whoever can connect there drains workers", name, address)
	}
}

// AskNobody are the routers that let everybody in: they have no clients' keys to ask for.
func (m *Manifests) AskNobody() (routers []string) {
	for _, p := range m.parts() {
		if p.target() == "router" && m.environment(p)["TANDEM_AUTH"] != "required" {
			routers = append(routers, p.name)
		}
	}
	return routers
}

func (m *Manifests) checkIngress(r *report, name string, p pool, rule networking.NetworkPolicyIngressRule) {
	if len(rule.From) == 0 && p.target() != "router" {
		r.add("network policy %s: everybody may connect to %s", name, p.name)
	}
	if len(rule.Ports) == 0 {
		r.add("network policy %s opens every port of %s", name, p.name)
	}
	for _, port := range rule.Ports {
		if port.Port == nil || !p.hasPort(*port.Port) {
			r.add("network policy %s: %s has no port %v", name, p.name, port.Port)
		}
	}
	for _, from := range rule.From {
		if from.PodSelector != nil && from.NamespaceSelector == nil && len(m.selected(from.PodSelector)) == 0 {
			r.add("network policy %s lets in pods that are not here", name)
		}
	}
}
