package integration_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// The router's connections to the only workers are reset while requests run, again and
// again: every request ends well, with the tokens that it would have had.
func TestResetConnections(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel() // much of it is waiting
	binaries := clustertest.Build(t)
	servers := clustertest.Servers(clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries))
	serve := func(target string, args ...string) *clustertest.Process {
		args = append([]string{"serve", "--target=" + target, "--engine=simulated", "--simulated-base-ms=20"}, args...)
		return clustertest.Launch(t, target, binaries.Tandem, append(args, servers...)...)
	}
	proxies := make(map[string]*faultstest.Proxy)
	for _, target := range []string{"prefill", "decode"} {
		address := clustertest.FreeAddress(t)
		proxies[target] = faultstest.NewProxy(t, "tcp", address)
		serve(target, "--listen="+address, "--advertise="+proxies[target].Address()).AwaitServing(t)
	}
	router := serve("router", "--listen=127.0.0.1:0", "--control=127.0.0.1:0").AwaitServing(t)
	m := clustertest.Dial(t, router.Field(t, "grpc"), router.Field(t, "control"))
	awaitWorkers(t, m, 2)
	ask := request(longPrompt(1), 60, 0.8, disaggregated)
	want := generate(t, m, ask)

	for _, target := range []string{"decode", "prefill", "decode"} {
		var requests sync.WaitGroup
		begun := make(chan struct{}, streams)
		for range streams {
			requests.Go(func() {
				said := false
				r, err := m.GenerateWith(t.Context(), ask, func(tokens int) {
					if tokens >= 5 && !said {
						said = true
						begun <- struct{}{}
					}
				})
				if err != nil || !slices.Equal(r.Tokens, want.Tokens) || r.Text != want.Text {
					t.Errorf("connections to the %s worker were reset: tokens %v, want %v; route %v; error %v", target, r.Tokens, want.Tokens, r.Finished.GetRoute(), err)
				}
			})
		}
		for range streams {
			<-begun
		}
		proxies[target].Reset()
		requests.Wait()
	}
	m.AwaitIdle(t)
}
