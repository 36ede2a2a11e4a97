package mesh_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// Ports come first, since one that is taken should not be found after a long load; the
// router after the workers, since it leaves before them, and readiness last of all.
func TestModulesOfTargets(t *testing.T) {
	for target, want := range map[string]string{
		"prefill":    "certs listeners tracing modelfiles etcd nats membership model http recording prefill readiness",
		"decode":     "certs listeners tracing modelfiles etcd nats membership model http recording decode readiness",
		"kvtransfer": "certs listeners tracing modelfiles etcd nats membership model http recording kvtransfer readiness",
		"router":     "certs listeners tracing modelfiles etcd nats membership model http recording router readiness",
		"up":         "certs listeners tracing modelfiles model etcd nats membership http recording prefill decode kvtransfer autoscaler router up readiness",
	} {
		order, err := mesh.ModuleOrder(target)
		if got := strings.Join(order, " "); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", target, got, err, want)
		}
	}
}
