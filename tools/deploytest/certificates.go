package deploytest

import (
	"maps"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// checkCertificates checks that each pool that mounts a certificate has one of its own role,
// whose name begins the names of its pods, that it has the names of the pool's services, and that
// somebody issues it. A pool with TLS of which that cannot be said would not start, or be refused.
func (m *Manifests) checkCertificates(r *report) {
	bySecret := map[string]*Certificate{}
	for name, c := range m.Certificates {
		bySecret[c.Spec.SecretName] = c
		issuer := m.Issuers[c.Spec.IssuerRef.Name]
		switch {
		case issuer == nil:
			r.add("certificate %s: there is no issuer %s", name, c.Spec.IssuerRef.Name)
		case !c.Spec.IsCA && !slices.Contains(c.Spec.Usages, "server auth"):
			r.add("certificate %s: its usages lack server auth", name)
		case !c.Spec.IsCA && c.Spec.CommonName != "nats" && !slices.Contains(c.Spec.Usages, "client auth"):
			r.add("certificate %s: its usages lack client auth", name)
		case c.Spec.CommonName == "nats" && slices.Contains(c.Spec.Usages, "client auth"):
			r.add("certificate %s: its usages have client auth, but NATS is nobody's client", name)
		case c.Spec.RenewBefore.Duration >= c.Spec.Duration.Duration && !c.Spec.IsCA:
			r.add("certificate %s: it is renewed before it begins", name)
		}
	}
	for name, issuer := range m.Issuers {
		if ca := issuer.Spec.CA; ca != nil && (bySecret[ca.SecretName] == nil || !bySecret[ca.SecretName].Spec.IsCA) {
			r.add("issuer %s: no certificate of an authority is in %s", name, ca.SecretName)
		}
	}
	for _, p := range m.parts() {
		encrypted := m.environment(p)["TANDEM_TLS_CERT"] != ""
		mounted := false
		for _, volume := range p.Spec.Volumes {
			if volume.Secret == nil || !strings.HasSuffix(volume.Secret.SecretName, "-tls") {
				continue
			}
			mounted = true
			c := bySecret[volume.Secret.SecretName]
			if c == nil {
				r.add("%s: no certificate is in the secret %s", p.name, volume.Secret.SecretName)
				continue
			}
			if want := "spiffe://tandem/" + p.target() + "/" + p.name; !slices.Equal(c.Spec.URIs, []string{want}) || c.Spec.CommonName != p.target() {
				r.add("%s: its certificate is for %v and %s, want %s and %s", p.name, c.Spec.URIs, c.Spec.CommonName, want, p.target())
			}
			for name, s := range m.Services {
				if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) && !slices.Contains(c.Spec.DNSNames, name) {
					r.add("%s: its certificate lacks the name of the service %s", p.name, name)
				}
			}
		}
		if encrypted != mounted {
			r.add("%s: it mounts a certificate: %v; its settings name one: %v", p.name, mounted, encrypted)
		}
	}
}

// checkRights checks that an etcd that knows its users by certificates is told what each may do: until
// then whoever has one may write everything, keys of clients too.
func (m *Manifests) checkRights(r *report) {
	for _, etcd := range m.pools() {
		if slices.Contains(etcd.Spec.Containers[0].Args, "--client-cert-auth") && !slices.ContainsFunc(m.jobs(), func(j pool) bool { return m.setsRights(j, etcd) }) {
			r.add("%s: no job that reaches it runs etcd-auth with an operator's certificate: every certificate may write everything", etcd.name)
		}
	}
}

// setsRights says whether a job runs 'tandem etcd-auth' at an etcd, is let in there and has an
// operator's certificate.
func (m *Manifests) setsRights(job, etcd pool) bool {
	args := job.Spec.Containers[0].Args
	if len(args) == 0 || args[0] != "etcd-auth" || !slices.Contains(args, "--etcd=https://"+etcd.name+":2379") {
		return false
	}
	letIn := false
	for _, n := range m.Policies {
		if !slices.ContainsFunc(m.selected(&n.Spec.PodSelector), func(p pool) bool { return p.name == etcd.name }) {
			continue
		}
		for _, rule := range n.Spec.Ingress {
			for _, from := range rule.From {
				letIn = letIn || from.PodSelector != nil && labels.SelectorFromSet(from.PodSelector.MatchLabels).Matches(labels.Set(job.Labels))
			}
		}
	}
	operators := slices.ContainsFunc(job.Spec.Volumes, func(v core.Volume) bool {
		return v.Secret != nil && slices.ContainsFunc(slices.Collect(maps.Values(m.Certificates)), func(c *Certificate) bool {
			return c.Spec.SecretName == v.Secret.SecretName && c.Spec.CommonName == "operator"
		})
	})
	return letIn && operators
}
