package integration_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Two thousand records of nobody in a real etcd: requests go to the two workers that
// there are as if the records were not there, also when their connections are reset, and a
// worker that starts among them is found. How long requests take is logged.
func TestBogusRecords(t *testing.T) {
	t.Parallel() // much of it is waiting
	longtest.Only(t)
	binaries := clustertest.Build(t)
	etcd := clustertest.LaunchEtcd(t, binaries)
	servers := clustertest.Servers(etcd, clustertest.LaunchNATS(t, binaries))
	serve := func(target string, args ...string) *clustertest.Process {
		args = append([]string{"serve", "--target=" + target, "--engine=simulated", "--simulated-base-ms=2"}, args...)
		return clustertest.Launch(t, target, binaries.Tandem, append(args, servers...)...)
	}
	var proxies []*faultstest.Proxy
	for _, target := range []string{"prefill", "decode"} {
		address := clustertest.FreeAddress(t)
		proxy := faultstest.NewProxy(t, "tcp", address)
		proxies = append(proxies, proxy)
		serve(target, "--listen="+address, "--advertise="+proxy.Address()).AwaitServing(t)
	}
	router := serve("router", "--listen=127.0.0.1:0", "--control=127.0.0.1:0").AwaitServing(t)
	m := clustertest.Dial(t, router.Field(t, "grpc"), router.Field(t, "control"))
	awaitWorkers(t, m, 2)
	ask := request(longPrompt(1), 20, 0.8, disaggregated)
	want := generate(t, m, ask)

	ask100 := func(when string) {
		var took []time.Duration
		for range 100 {
			began := time.Now()
			r := generate(t, m, ask)
			took = append(took, time.Since(began))
			if !slices.Equal(r.Tokens, want.Tokens) || r.Finished.GetRoute().GetRetries() != 0 {
				t.Errorf("%s: tokens %v, want %v; route %v", when, r.Tokens, want.Tokens, r.Finished.GetRoute())
			}
			explained, err := m.Control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.Accepted.GetRequestId()})
			if err != nil {
				t.Fatal(err)
			}
			for _, decision := range explained.GetDecisions() {
				if n := len(decision.GetCandidates()); n != 2 {
					t.Errorf("%s: looked at %d workers of two", when, n)
				}
			}
		}
		slices.Sort(took)
		t.Logf("%s: requests took %s in the median, %s at most", when, took[50].Round(100*time.Microsecond), took[99].Round(100*time.Microsecond))
	}
	ask100("before")
	writeBogusRecords(t, m, etcd, 2000)
	ask100("just after 2,000 records of nobody were written")
	clustertest.Await(t, func() string {
		views, err := m.Workers(controlv1.Role_ROLE_UNSPECIFIED)
		unmet := 0
		for _, v := range views {
			if !v.GetConnected() && v.GetExcluded() != "" {
				unmet++
			}
		}
		if unmet < 200 {
			return fmt.Sprintf("%d records are shown with what is wrong with them: %v", unmet, err)
		}
		return ""
	})
	ask100("later")

	var requests sync.WaitGroup
	for range 6 {
		requests.Go(func() {
			for range 10 {
				if r := generate(t, m, ask); !slices.Equal(r.Tokens, want.Tokens) {
					t.Errorf("connections were reset: tokens %v, want %v", r.Tokens, want.Tokens)
				}
			}
		})
	}
	for _, proxy := range proxies {
		proxy.Reset()
	}
	requests.Wait()

	serve("decode", "--listen=127.0.0.1:0").AwaitServing(t)
	awaitWorkers(t, m, 3)
	m.AwaitIdle(t)
}

// writeBogusRecords writes copies of the decode worker's record, under other ids, that lead
// to a port that refuses, to one that accepts and says nothing, to a gRPC server that is no
// worker, and to the decode worker itself.
func writeBogusRecords(t *testing.T, m *clustertest.Client, etcd string, n int) {
	t.Helper()
	views, err := m.Workers(controlv1.Role_ROLE_DECODE)
	if err != nil || len(views) != 1 {
		t.Fatalf("decode workers: %v, %v", views, err)
	}
	model := views[0].GetRecord()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stranger := grpc.NewServer()
	healthv1.RegisterHealthServer(stranger, health.NewServer())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = stranger.Serve(listener) // until it is stopped
	}()
	t.Cleanup(func() {
		stranger.Stop()
		<-served
	})
	addresses := []string{clustertest.FreeAddress(t), silent.Addr().String(), listener.Addr().String(), model.GetAddresses()[0]}

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }() // nothing is kept in it
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	const most = 100 // writes of a transaction; etcd takes 128
	var writes []clientv3.Op
	for i := range n {
		fake := proto.CloneOf(model)
		fake.Id, fake.Epoch, fake.Addresses = fmt.Sprintf("bogus-%d", i), uint64(i)+1, []string{addresses[i/2%len(addresses)]}
		fake.Role = []controlv1.Role{controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE}[i%2]
		value, err := protojson.Marshal(fake)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, clientv3.OpPut(membership.WorkerKey(fake.GetRole(), fake.GetId()), string(value)))
		if len(writes) == most || i == n-1 {
			if _, err := client.Txn(ctx).Then(writes...).Commit(); err != nil {
				t.Fatal(err)
			}
			writes = nil
		}
	}
}
