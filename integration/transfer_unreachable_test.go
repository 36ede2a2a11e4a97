package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const auto = inferencev1.Mode_MODE_AUTO

// checkUnreached checks what a mesh answers in which KV has no way from its prefill
// to its decode worker: in mode auto the tokens that one worker gives, within the
// request's deadline, else a typed error at once.
// ask makes a request of each number, whose prompts have little in common.
func checkUnreached(t *testing.T, m *clustertest.Client, ask func(int, inferencev1.Mode) *inferencev1.GenerateRequest) {
	t.Helper()
	for i := range 2 {
		r := generate(t, m, ask(i, auto))
		route := r.Finished.GetRoute()
		if want := generate(t, m, ask(i, aggregated)).Tokens; !slices.Equal(r.Tokens, want) {
			t.Errorf("%v, want %v", r.Tokens, want)
		}
		// Once it has failed to reach the worker, or since one worker is predicted to be better.
		explained := strings.Contains(route.GetReason(), "because KV c") || strings.Contains(route.GetReason(), "the first token predicted")
		if route.GetMode() != aggregated || !explained || route.GetRetries() > 1 {
			t.Errorf("request %d: route %v", i, route)
		}
	}
	for i := range 2 {
		_, err := m.Generate(t.Context(), ask(2+i, disaggregated))
		if status.Code(err) != codes.Unavailable || rpc.Reason(err) != "KV_UNREACHABLE" || !strings.Contains(err.Error(), "--kv-advertise") {
			t.Errorf("disaggregated: %v, reason %q", err, rpc.Reason(err))
		}
		if after, _ := rpc.RetryAfter(err); after < time.Second {
			t.Errorf("retry after %v", after)
		}
	}
}

// Nobody listens at the decode worker's KV address.
func TestUnreachable(t *testing.T) {
	for _, network := range faultstest.Sockets() {
		t.Run(network, func(t *testing.T) {
			g := newRig(t, network)
			g.decode.proxy.Close()
			checkUnreached(t, g.client, g.request)
			freeAfter(t, time.Now(), g.held)

			// Another start of it has an address that works, and is used at once.
			g.startDecode().kill()
			clustertest.Await(t, func() string {
				r, err := g.client.Generate(t.Context(), g.request(10, disaggregated))
				if err != nil {
					return err.Error()
				}
				if transport := r.Finished.GetRoute().GetTransport(); transport != network {
					t.Errorf("went over %q", transport)
				}
				return ""
			})
		})
	}
}

// The same with processes, as an operator would get it wrong.
func TestUnreachableProcesses(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel() // much of it is waiting
	binaries := clustertest.Build(t)
	for name, c := range map[string]struct{ prefill, decode []string }{
		"bad --kv-advertise":  {nil, []string{"--kv-advertise=" + clustertest.FreeAddress(t), "--kv-socket=off"}},
		"another worker's":    {nil, nil}, // the prefill worker's own port, filled in below
		"no common transport": {[]string{"--kv-transport=tcp"}, []string{"--kv-transport=unix"}},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, nats := clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries)
			serve := func(target string, args ...string) *clustertest.Process {
				args = append([]string{"serve", "--target=" + target, "--model=../models/fable", "--kv-memory=64MiB"}, args...)
				return clustertest.Launch(t, target, binaries.Tandem, append(args, clustertest.Servers(etcd, nats)...)...).AwaitServing(t)
			}
			m := serve("router", "--listen=127.0.0.1:0").Client(t)
			prefill := serve("prefill", c.prefill...)
			if c.decode == nil {
				c.decode = []string{"--kv-advertise=" + prefill.Field(t, "grpc"), "--kv-socket=off"}
			}
			serve("decode", c.decode...)
			awaitWorkers(t, m, 2)
			checkUnreached(t, m, func(number int, mode inferencev1.Mode) *inferencev1.GenerateRequest {
				return freshRequest(number, 100, 20, mode)
			})
			m.AwaitIdle(t)
		})
	}
}
