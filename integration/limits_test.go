package integration_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// TestLimitsOverRouterProcesses: three routers, which are processes of their own, let a tenant that
// asks all of them at once have its limit within 5%, and refuse the rest, from the moment that they
// answer.
func TestLimitsOverRouterProcesses(t *testing.T) {
	longtest.Only(t)
	const routers, clients, limit, refusals = 3, 4, 100, 150
	binaries := clustertest.Build(t)
	etcd, natsURL := clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries)
	members, err := membership.Connect(t.Context(), membership.Config{Endpoints: []string{etcd}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = members.Close() }()
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes = "acme", []string{string(auth.Generate), string(auth.Operate)}
	record.Limits = &controlv1.TenantLimits{RequestsPerMinute: limit}
	if err := members.CreateKey(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	var asks []inferencev1.InferenceClient
	for i := range routers {
		id, address := fmt.Sprintf("router-%d", i+1), clustertest.FreeAddress(t)
		arguments := append([]string{"serve", "--target=router", "--id=" + id, "--listen=" + address, "--auth=required", "--control=", "--router-state-dir=off", "--model=../models/fable"},
			clustertest.Servers(etcd, natsURL)...)
		clustertest.Launch(t, id, binaries.Tandem, arguments...).AwaitServing(t)
		conn, err := rpc.Dial(address, rpc.ClientConfig{APIKey: key})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		asks = append(asks, inferencev1.NewInferenceClient(conn))
		clustertest.Await(t, func() string { // which is not counted
			if _, err := asks[i].ListModels(t.Context(), &inferencev1.ListModelsRequest{}); err != nil {
				return fmt.Sprintf("%s: %v", id, err)
			}
			return ""
		})
	}
	var admitted, refused atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), clustertest.Timeout)
	defer cancel()
	began := time.Now()
	var all sync.WaitGroup
	for i := range routers * clients {
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := asks[i%routers].Tokenize(ctx, &inferencev1.TokenizeRequest{Text: "Once upon a time"})
				switch status.Code(err) {
				case codes.OK:
					admitted.Add(1)
				case codes.ResourceExhausted:
					if refused.Add(1) >= refusals && admitted.Load() >= limit*95/100 {
						cancel()
					}
				default:
					if ctx.Err() == nil {
						t.Errorf("%v", err)
					}
					return
				}
			}
		})
	}
	all.Wait()
	minutes := math.Ceil(time.Since(began).Minutes()) // one, unless the machine is very slow
	t.Logf("%d admitted of %v a minute, %d refused, in %v", admitted.Load(), limit, refused.Load(), time.Since(began))
	if n := float64(admitted.Load()); n < .95*limit || n > 1.05*limit*minutes {
		t.Errorf("%v of %v a minute were admitted", n, limit)
	}
	if refused.Load() < refusals {
		t.Errorf("only %d were refused", refused.Load())
	}
}
