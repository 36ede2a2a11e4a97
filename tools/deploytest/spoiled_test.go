package deploytest_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/tools/deploytest"
)

// A manifest with one thing wrong is refused, and the message says what. Each case
// is a mistake that applies, or nearly, and fails at night.
func TestSpoiledManifestsAreRefused(t *testing.T) {
	s, err := settings()
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string]string{}
	for _, folder := range overlays(t) {
		whole[filepath.Base(folder)] = render(t, folder)
	}
	for _, test := range []struct {
		name, overlay string
		old, new      string // the first occurrence; new for all where all is set
		all           bool
		want          string
	}{
		// What the API server refuses.
		{"unknown field", "dev", "minReadySeconds:", "minReadySecond:", false, `unknown field "spec.minReadySecond"`},
		{"wrong type", "dev", "failureThreshold: 600", "failureThreshold: many", false, "cannot unmarshal"},
		{"a field that must be there", "dev", "        image: tandem:dev\n", "", false, "image: Required value"},
		{"a value that is none", "dev", "unhealthyPodEvictionPolicy: AlwaysAllow", "unhealthyPodEvictionPolicy: Always", false, "Unsupported value"},
		{"no such version", "dev", "apiVersion: policy/v1\n", "apiVersion: policy/v3\n", false, "no kind"},
		{"selector beside labels", "dev", "    matchLabels:\n      app.kubernetes.io/component: router\n      app.kubernetes.io/name: tandem\n  strategy", "    matchLabels:\n      app.kubernetes.io/component: routers\n      app.kubernetes.io/name: tandem\n  strategy", false, "`selector` does not match template `labels`"},
		{"probe of no kind", "dev", "          grpc:\n            port: 7070\n            service: server\n          periodSeconds: 5", "          periodSeconds: 5", false, "must specify a handler"},
		{"request over limit", "dev", "            memory: 512Mi\n          requests", "            memory: 511Mi\n          requests", false, "must be less than or equal to memory limit"},
		{"port that is none", "dev", "containerPort: 7071", "containerPort: 70710", false, "must be between 1 and 65535"},
		{"bounds of an autoscaler", "production", "maxReplicas: 8", "maxReplicas: 1", false, "must be greater than or equal to `minReplicas`"},
		{"sleep longer than the grace", "dev", "seconds: 10", "seconds: 1000", false, "must be non-negative and less than terminationGracePeriodSeconds"},
		{"unknown field of KEDA", "production-keda", "minReplicaCount:", "minReplicas:", false, `unknown field "spec.minReplicas"`},
		{"fallback of KEDA, which shrinks a busy pool", "production-keda", "  pollingInterval:", "  fallback:\n    failureThreshold: 6\n    replicas: 2\n  pollingInterval:", false, `unknown field "spec.fallback"`},
		{"number for a string of KEDA", "production-keda", `threshold: "1"`, "threshold: 1", false, "cannot unmarshal number"},
		{"unknown field of the operator", "production", "podMetricsEndpoints:", "endpoints:", false, `unknown field "spec.endpoints"`},
		{"unknown field of cert-manager", "mtls", "renewBefore:", "renewbefore:", true, `unknown field "spec.renewbefore"`},
		// What only this project knows.
		{"another role's certificate", "mtls", "spiffe://tandem/decode/tandem-decode", "spiffe://tandem/prefill/tandem-decode", false, "its certificate is for [spiffe://tandem/prefill/tandem-decode]"},
		{"a service that the certificate does not name", "mtls", "  - tandem-router-pods\n", "", false, "its certificate lacks the name of the service tandem-router-pods"},
		{"a certificate that nobody makes", "mtls", "secretName: tandem-decode-tls", "secretName: tandem-decod-tls", false, "no certificate is in the secret"},
		{"an etcd that nobody tells who may do what", "mtls", "      - args:\n        - etcd-auth\n", "      - args:\n        - version\n", false, "tandem-etcd: no job that reaches it runs etcd-auth"},
		{"rights set with a part's certificate", "mtls", "          secretName: tandem-operator-tls", "          secretName: tandem-router-tls", false, "with an operator's certificate"},
		{"rights set by who is not let in", "mtls", "        app.kubernetes.io/component: etcd-auth\n        app.kubernetes.io/name: tandem\n", "        app.kubernetes.io/component: etcd-auth\n        app.kubernetes.io/name: other\n", false, "no job that reaches it"},
		{"a job without an end", "mtls", "      restartPolicy: OnFailure\n", "", false, "restartPolicy: Required value"},
		{"killed while it drains", "dev", "terminationGracePeriodSeconds: 90", "terminationGracePeriodSeconds: 60", false, "but preStop, --stop-timeout and leaving take 1m20s"},
		{"no time for addresses", "dev", "seconds: 10", "seconds: 1", false, "clients still come"},
		{"probe of a port that is not there", "dev", "path: /readyz\n            port: metrics", "path: /readyz\n            port: metric", false, "asks a port that it does not have"},
		{"a roll-out that fails while its pods start", "dev", "  progressDeadlineSeconds: 1500\n", "", true, "has failed after 600 s, but a pod may take 1205 s to start"},
		{"misspelt variable", "dev", "TANDEM_START_TIMEOUT", "TANDEM_STARTTIMEOUT", true, "TANDEM_STARTTIMEOUT is no flag"},
		{"value that is not taken", "dev", "TANDEM_START_TIMEOUT: \"0\"", "TANDEM_START_TIMEOUT: soon", false, "TANDEM_START_TIMEOUT"},
		{"target that is none", "dev", "--target=prefill", "--target=prefil", true, "there is no pool of prefill"},
		{"KV over the memory", "dev", "value: 256MiB", "value: 4GiB", false, "TANDEM_KV_MEMORY is 4GiB"},
		{"CUDA without a GPU", "gpu", "            nvidia.com/gpu: \"1\"\n", "", true, "it asks for a GPU: false"},
		{"a GPU for the CPU engine", "gpu", "value: cuda\n", "value: cpu\n", true, "it asks for a GPU: true"},
		{"blocks over the memory", "production", "TANDEM_STORE_MEMORY\n          value: 8GiB", "TANDEM_STORE_MEMORY\n          value: 9GiB", false, "TANDEM_STORE_MEMORY is 9GiB"},
		{"a model in a store", "production", "terminationGracePeriodSeconds: 45\n", "terminationGracePeriodSeconds: 45\n      volumes:\n      - name: model\n        persistentVolumeClaim:\n          claimName: tandem-model\n", false, "a block store needs no model"},
		{"worker published", "dev", "  selector:\n    app.kubernetes.io/component: router\n", "  selector:\n    app.kubernetes.io/component: decode\n", false, "only routers are reached"},
		{"service of nobody", "dev", "  selector:\n    app.kubernetes.io/component: router\n", "  selector:\n    app.kubernetes.io/component: rooter\n", false, "selects 0 pools"},
		{"everybody at a worker", "dev", "  - from:\n    - podSelector:\n        matchLabels:\n          app.kubernetes.io/component: router\n          app.kubernetes.io/name: tandem\n    ports", "  - ports", false, "everybody may connect"},
		{"operators' calls for everybody", "dev", "value: 127.0.0.1:7090", "value: 0.0.0.0:7090", false, "TANDEM_CONTROL is 0.0.0.0:7090"},
		{"images of two versions", "dev", "image: tandem:dev", "image: tandem:v1", false, "is of v1 here and of dev elsewhere"},
		{"image of no version", "dev", "image: tandem-nats:dev", "image: tandem-nats", false, "has no tag"},
		{"as root", "dev", "runAsNonRoot: true", "runAsNonRoot: false", false, "may run as root"},
		{"root may be written", "dev", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", false, "may write its root"},
		{"token", "dev", "      automountServiceAccountToken: false", "      automountServiceAccountToken: true", false, "gets a token"},
		{"service links", "dev", "enableServiceLinks: false", "enableServiceLinks: true", false, "variables that read as flags"},
		{"autoscaler of nobody", "production", "    name: tandem-prefill\n", "    name: tandem-prefills\n", false, "which is not here"},
		{"replicas beside an autoscaler", "production", "  progressDeadlineSeconds: 1500\n  revisionHistoryLimit: 5\n  selector:\n    matchLabels:\n      app.kubernetes.io/component: decode", "  progressDeadlineSeconds: 1500\n  replicas: 2\n  revisionHistoryLimit: 5\n  selector:\n    matchLabels:\n      app.kubernetes.io/component: decode", false, "each apply would undo"},
		{"claim that is not there", "production", "claimName: tandem-model", "claimName: model", true, "claim model is not here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			count := 1
			if test.all {
				count = -1
			}
			text := strings.Replace(whole[test.overlay], test.old, test.new, count)
			if text == whole[test.overlay] {
				t.Fatalf("the overlay has no %q", test.old)
			}
			m, err := deploytest.Parse([]byte(text))
			if err == nil {
				err = errors.Join(append(m.Check(), s.Check(m)...)...)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
