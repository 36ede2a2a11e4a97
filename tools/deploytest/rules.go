package deploytest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// leaving is what a part may take after --stop-timeout: cutting off what ignored the
// end, and removing its record from etcd.
const leaving = 10 * time.Second

// pool is a set of pods and where it comes from.
type pool struct {
	name string
	core.PodTemplateSpec
}

func (m *Manifests) pools() []pool {
	var pools []pool
	for name, d := range m.Deployments {
		pools = append(pools, pool{name, d.Spec.Template})
	}
	for name, s := range m.StatefulSets {
		pools = append(pools, pool{name, s.Spec.Template})
	}
	slices.SortFunc(pools, func(a, b pool) int { return strings.Compare(a.name, b.name) })
	return pools
}

// jobs are the pods that end.
func (m *Manifests) jobs() []pool {
	var jobs []pool
	for name, j := range m.Jobs {
		jobs = append(jobs, pool{name, j.Spec.Template})
	}
	return jobs
}

// parts are the pools that run tandem itself.
func (m *Manifests) parts() []pool {
	return slices.DeleteFunc(m.pools(), func(p pool) bool { return p.target() == "" })
}

// target is the part that a pool runs; empty if it is not of tandem.
func (p pool) target() string {
	for _, argument := range p.Spec.Containers[0].Args {
		if target, is := strings.CutPrefix(argument, "--target="); is {
			return target
		}
	}
	return ""
}

// selected are the pools that a selector matches; one that matches all is none.
func (m *Manifests) selected(selector *metav1.LabelSelector) []pool {
	matches, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || matches.Empty() {
		return nil
	}
	return slices.DeleteFunc(m.pools(), func(p pool) bool { return !matches.Matches(labels.Set(p.Labels)) })
}

// hasPort says whether a pool's first container has a port, by name or number.
func (p pool) hasPort(port intstr.IntOrString) bool {
	return slices.ContainsFunc(p.Spec.Containers[0].Ports, func(c core.ContainerPort) bool {
		return port.Type == intstr.String && c.Name == port.StrVal || port.Type == intstr.Int && c.ContainerPort == port.IntVal
	})
}

// environment is what a pool's container gets, where it is known before it runs.
func (m *Manifests) environment(p pool) map[string]string {
	values := map[string]string{}
	for _, from := range p.Spec.Containers[0].EnvFrom {
		if from.ConfigMapRef != nil && m.ConfigMaps[from.ConfigMapRef.Name] != nil {
			for name, value := range m.ConfigMaps[from.ConfigMapRef.Name].Data {
				values[name] = value
			}
		}
	}
	known := map[string]string{"metadata.name": p.name + "-abcde", "status.podIP": "10.1.2.3"}
	for _, e := range p.Spec.Containers[0].Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			value = known[e.ValueFrom.FieldRef.FieldPath]
		}
		for name, other := range values { // as the kubelet expands them, in order
			value = strings.ReplaceAll(value, "$("+name+")", other)
		}
		values[e.Name] = value
	}
	return values
}

// Check is every rule of this project that the manifests break.
func (m *Manifests) Check() []error {
	r := &report{}
	images := map[string]string{}
	for _, p := range m.pools() {
		checkProbes(r, p)
	}
	for _, p := range append(m.pools(), m.jobs()...) {
		m.checkPod(r, p)
		name, tag, tagged := strings.Cut(p.Spec.Containers[0].Image, ":")
		if !tagged || tag == "latest" {
			r.add("%s: image %q has no tag of its own", p.name, p.Spec.Containers[0].Image)
		}
		if before, seen := images[name]; seen && before != tag {
			r.add("%s: image %s is of %s here and of %s elsewhere", p.name, name, tag, before)
		}
		images[name] = tag
	}
	for _, target := range []string{"router", "prefill", "decode"} {
		if !slices.ContainsFunc(m.parts(), func(p pool) bool { return p.target() == target }) {
			r.add("there is no pool of %s", target)
		}
	}
	for _, p := range m.parts() {
		m.checkStop(r, p)
		budgets := 0
		for _, b := range m.Budgets {
			if slices.ContainsFunc(m.selected(b.Spec.Selector), func(s pool) bool { return s.name == p.name }) {
				budgets++
			}
		}
		if budgets != 1 {
			r.add("%s: %d disruption budgets select it, want one", p.name, budgets)
		}
	}
	for name, d := range m.Deployments {
		if probe := d.Spec.Template.Spec.Containers[0].StartupProbe; probe != nil && *d.Spec.ProgressDeadlineSeconds <= probe.PeriodSeconds*probe.FailureThreshold+d.Spec.MinReadySeconds {
			r.add("%s: its roll-out has failed after %d s, but a pod may take %d s to start", name, *d.Spec.ProgressDeadlineSeconds, probe.PeriodSeconds*probe.FailureThreshold+d.Spec.MinReadySeconds)
		}
	}
	for name, b := range m.Budgets {
		if n := len(m.selected(b.Spec.Selector)); n != 1 {
			r.add("disruption budget %s selects %d pools, want one", name, n)
		}
	}
	for name, monitor := range m.Monitors {
		selected := m.selected(&monitor.Spec.Selector)
		for _, p := range selected {
			for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
				if !p.hasPort(intstr.FromString(endpoint.Port)) {
					r.add("pod monitor %s: %s has no port %s", name, p.name, endpoint.Port)
				}
			}
			if p.Annotations["prometheus.io/scrape"] == "true" {
				r.add("pod monitor %s: %s is also scraped by annotations: everything counts twice", name, p.name)
			}
		}
		if len(selected) < 3 {
			r.add("pod monitor %s selects %d pools", name, len(selected))
		}
	}
	m.checkNetwork(r)
	m.checkCertificates(r)
	m.checkRights(r)
	m.checkScaling(r)
	return r.problems
}

type report struct{ problems []error }

func (r *report) add(format string, arguments ...any) {
	r.problems = append(r.problems, fmt.Errorf(format, arguments...))
}

// checkPod checks what holds of every pod.
func (m *Manifests) checkPod(r *report, p pool) {
	spec, c := p.Spec, p.Spec.Containers[0]
	if len(spec.Containers) != 1 {
		r.add("%s: %d containers: the rules look at one", p.name, len(spec.Containers))
	}
	pod, own := spec.SecurityContext, c.SecurityContext
	switch {
	case pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || pod.SeccompProfile == nil || pod.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault:
		r.add("%s: its pod may run as root or without seccomp", p.name)
	case own == nil || own.ReadOnlyRootFilesystem == nil || !*own.ReadOnlyRootFilesystem || own.AllowPrivilegeEscalation == nil || *own.AllowPrivilegeEscalation:
		r.add("%s: its container may write its root or gain privileges", p.name)
	case own.Capabilities == nil || !slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) || len(own.Capabilities.Add) > 0:
		r.add("%s: its container keeps capabilities", p.name)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || m.Accounts[spec.ServiceAccountName] == nil {
		r.add("%s: it gets a token, or an account that is not here", p.name)
	}
	if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
		r.add("%s: enableServiceLinks would set variables that read as flags", p.name)
	}
	if spec.HostNetwork || slices.ContainsFunc(c.Ports, func(port core.ContainerPort) bool { return port.HostPort != 0 }) {
		r.add("%s: it is open on its host", p.name)
	}
	request, limit := c.Resources.Requests[core.ResourceMemory], c.Resources.Limits[core.ResourceMemory]
	if limit.IsZero() || request.Cmp(limit) != 0 {
		r.add("%s: memory requested is %s, its limit %s: they must be equal and set", p.name, request.String(), limit.String())
	}
	for _, name := range []string{"TANDEM_KV_MEMORY", "TANDEM_STORE_MEMORY"} {
		value := m.environment(p)[name]
		if value == "" || value == "auto" && onGPU(&c) { // which has memory of its own
			continue
		}
		if size, err := resource.ParseQuantity(strings.TrimSuffix(value, "B")); err != nil || size.Cmp(limit) >= 0 {
			r.add("%s: %s is %s of %s", p.name, name, value, limit.String())
		}
	}
	if engine := m.environment(p)["TANDEM_ENGINE"]; (engine == "cuda") != onGPU(&c) {
		r.add("%s: its engine is %q, and it asks for a GPU: %v", p.name, engine, onGPU(&c))
	}
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef == nil || m.ConfigMaps[from.ConfigMapRef.Name] == nil {
			r.add("%s: it reads its environment from what is not here", p.name)
		}
	}
	if p.target() == "kvtransfer" && slices.ContainsFunc(spec.Volumes, func(v core.Volume) bool { return v.Secret == nil }) {
		r.add("%s: a block store needs no model, and waits for its volume: list its component after that of the model", p.name)
	}
	for _, v := range spec.Volumes {
		if v.PersistentVolumeClaim != nil && !m.Claims[v.PersistentVolumeClaim.ClaimName] {
			r.add("%s: claim %s is not here", p.name, v.PersistentVolumeClaim.ClaimName)
		}
	}
	if class := spec.PriorityClassName; class != "" && !m.PriorityClasses[class] {
		r.add("%s: priority class %s is not here", p.name, class)
	}
}

// checkProbes checks that it can be seen whether a pod that does not end runs.
func checkProbes(r *report, p pool) {
	c := p.Spec.Containers[0]
	for name, probe := range map[string]*core.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		switch {
		case probe == nil:
			r.add("%s: it has no %s probe", p.name, name)
		case probe.HTTPGet != nil && !p.hasPort(probe.HTTPGet.Port),
			probe.GRPC != nil && !p.hasPort(intstr.FromInt32(probe.GRPC.Port)):
			r.add("%s: its %s probe asks a port that it does not have", p.name, name)
		}
	}
}

// checkStop checks that a part is not killed while it drains.
func (m *Manifests) checkStop(r *report, p pool) {
	stop, err := time.ParseDuration(m.environment(p)["TANDEM_STOP_TIMEOUT"])
	if err != nil {
		r.add("%s: TANDEM_STOP_TIMEOUT: %w", p.name, err)
		return
	}
	var before time.Duration
	if l := p.Spec.Containers[0].Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
		before = time.Duration(l.PreStop.Sleep.Seconds) * time.Second
	}
	if p.target() == "router" && before < 5*time.Second {
		r.add("%s: preStop sleeps %s: clients still come while addresses are being removed", p.name, before)
	}
	if grace := time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second; grace < before+stop+leaving {
		r.add("%s: terminationGracePeriodSeconds is %s, but preStop, --stop-timeout and leaving take %s", p.name, grace, before+stop+leaving)
	}
}

// checkScaling checks that every autoscaler has a target of its own, which does not
// say how many it wants.
func (m *Manifests) checkScaling(r *report) {
	targets := map[string]string{}
	target := func(of, kind, name string, least, most int32) {
		d := m.Deployments[name]
		switch {
		case kind != "Deployment" || d == nil:
			r.add("%s scales %s %s, which is not here", of, kind, name)
		case m.Replicas[name]:
			r.add("%s scales %s, which has replicas of its own: each apply would undo what it did", of, name)
		case targets[name] != "":
			r.add("%s and %s scale %s", of, targets[name], name)
		case least < 1 || most < least:
			r.add("%s: %d to %d replicas", of, least, most)
		}
		targets[name] = of
	}
	for name, s := range m.Scalers {
		target("autoscaler "+name, s.Spec.ScaleTargetRef.Kind, s.Spec.ScaleTargetRef.Name, *s.Spec.MinReplicas, s.Spec.MaxReplicas)
		if b := s.Spec.Behavior; b == nil || b.ScaleDown.StabilizationWindowSeconds == nil || *b.ScaleDown.StabilizationWindowSeconds < 300 {
			r.add("autoscaler %s scales down at once", name)
		}
	}
	for name, s := range m.Scaled {
		if s.Spec.MinReplicaCount == nil || s.Spec.MaxReplicaCount == nil {
			r.add("scaled object %s has no bounds", name)
			continue
		}
		target("scaled object "+name, s.Spec.ScaleTargetRef.Kind, s.Spec.ScaleTargetRef.Name, *s.Spec.MinReplicaCount, *s.Spec.MaxReplicaCount)
		for _, trigger := range s.Spec.Triggers {
			for _, key := range []string{"serverAddress", "threshold", "query"} {
				if trigger.Type != "prometheus" || trigger.Metadata[key] == "" {
					r.add("scaled object %s: a trigger %q has no %s", name, trigger.Type, key)
				}
			}
		}
	}
}

// takeReplicas notes whether a deployment says how many pods it wants, which
// defaults hide.
func (m *Manifests) takeReplicas(d *apps.Deployment, document []byte) error {
	var raw struct {
		Spec struct {
			Replicas *int32 `json:"replicas"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(document, &raw); err != nil {
		return fmt.Errorf("decode deployment %s: %w", d.Name, err)
	}
	m.Replicas[d.Name] = raw.Spec.Replicas != nil
	return nil
}

// gpuResource is what NVIDIA's device plugin hands out.
const gpuResource core.ResourceName = "nvidia.com/gpu"

// onGPU says whether a container asks for whole GPUs, as much as it is limited to.
func onGPU(c *core.Container) bool {
	request, limit := c.Resources.Requests[gpuResource], c.Resources.Limits[gpuResource]
	return !limit.IsZero() && request.Cmp(limit) == 0
}

var (
	metricName  = regexp.MustCompile(`\b(?:tandem_|vllm:)[a-z0-9_]+`)
	documented  = regexp.MustCompile("`((?:tandem_|vllm:)[a-z0-9_:]+)`")
	adapterName = regexp.MustCompile(`(?m)^\s+as: (tandem_\w+)$`)
)

// CheckMetrics says which names of metrics in files are neither in
// docs/metrics.md, which a test of the mesh keeps true, nor defined by the rules of
// prometheus-adapter in one of the files.
func CheckMetrics(document []byte, files map[string][]byte) []error {
	var known []string
	for _, match := range documented.FindAllSubmatch(document, -1) {
		known = append(known, string(match[1]))
	}
	for _, text := range files {
		for _, match := range adapterName.FindAllSubmatch(text, -1) {
			known = append(known, string(match[1]))
		}
	}
	r := &report{}
	for file, text := range files {
		for _, name := range metricName.FindAllString(string(text), -1) {
			if !slices.Contains(known, name) {
				r.add("%s: there is no metric %s", file, name)
			}
		}
	}
	return r.problems
}
