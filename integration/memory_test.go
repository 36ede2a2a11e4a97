package integration_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc/rpctest"
)

// routerMemory is the limit of routers in deploy/k8s/base/router.yaml, and goMemory
// the limit of Go's heap that a router sets itself in such a container.
const (
	routerMemory = 1 << 30
	goMemory     = routerMemory / 10 * 9
)

// whole is a message of the most bytes that a router takes.
const whole = 8 << 20

// Strangers who never finish their requests, never read their answers, have answers
// kept, or send what grows when it is decoded, do not bring down a router with the
// memory that it is deployed with, and its other clients are served meanwhile.
func TestRouterKeepsToItsMemory(t *testing.T) {
	t.Parallel() // much of it is waiting
	longtest.Only(t)
	// The kernel refuses memory above the limit, and Go ends the process.
	capped := fmt.Sprintf(`ulimit -s 1024 && ulimit -d %d && export GOMEMLIMIT=%d && exec "$0" "$@"`, routerMemory>>10, goMemory)
	if out, err := exec.Command("/bin/sh", "-c", capped, "true").CombinedOutput(); err != nil {
		t.Skipf("memory cannot be limited here: %v: %s", err, out)
	}
	binaries := clustertest.Build(t)
	etcd, nats := clustertest.LaunchEtcd(t, binaries), clustertest.LaunchNATS(t, binaries)
	serve := func(name, program string, args ...string) *clustertest.Process {
		args = append(args, "--model=../models/fable", "--engine=simulated", "--kv-memory=64MiB", "--simulated-base-ms=1", "--simulated-per-token-ms=0.001")
		return clustertest.Launch(t, name, program, append(args, clustertest.Servers(etcd, nats)...)...)
	}
	serve("decode", binaries.Tandem, "serve", "--target=decode").AwaitServing(t)
	metrics := clustertest.FreeAddress(t)
	router := serve("router", "/bin/sh", "-c", capped, binaries.Tandem, "serve", "--target=router", "--listen=127.0.0.1:0", "--metrics="+metrics, "--router-kept-memory=8MiB")
	m := router.Client(t)
	awaitWorkers(t, m, 1)
	v := &victim{t: t, client: m, address: router.Field(t, "grpc"), metrics: metrics, router: router}
	v.want = generate(t, m, v.ask()).Tokens
	v.log("before")

	for _, attack := range []struct {
		name string
		run  func(context.Context)
	}{
		{"unfinished messages", v.unfinished},
		{"unread answers", v.unread},
		{"kept answers", v.kept},
		{"values", v.values},
	} {
		t.Run(attack.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			over := make(chan struct{})
			go func() {
				defer close(over)
				attack.run(ctx)
			}()
			for done := false; !done; {
				select {
				case <-over:
					done = true
				default:
				}
				v.serves(t)
				v.bounded(t)
			}
			v.log(attack.name)
		})
	}
	v.close()
	m.AwaitIdle(t)
	v.serves(t)
	v.log("after")
}

// victim is the router that is attacked.
type victim struct {
	t                *testing.T
	client           *clustertest.Client
	address, metrics string
	router           *clustertest.Process
	want             []uint32

	mu    sync.Mutex
	peers []*rpctest.Peer
}

// ask is a request of somebody who means well.
func (v *victim) ask() *inferencev1.GenerateRequest {
	return request("Once upon a time", 8, 0, aggregated)
}

// serves checks that the router serves well.
func (v *victim) serves(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	r, err := v.client.Generate(ctx, v.ask())
	if err != nil || !slices.Equal(r.Tokens, v.want) {
		t.Fatalf("somebody who means well got %v, want %v (%v)\n%s", r.Tokens, v.want, err, v.router.Stderr())
	}
}

// bounds are the defaults of the flags, but that less is kept, so that few answers are
// too many.
var bounds = map[string]float64{
	"tandem_rpc_receiving_bytes": 128 << 20, "tandem_rpc_sending_bytes": 64 << 20,
	"tandem_router_unread_bytes": 64 << 20, "tandem_router_vector_bytes": 32 << 20, "tandem_router_kept_bytes": 8 << 20,
}

// bounded checks that the router keeps to its limits, which are exceeded by one
// message until what exceeds them is ended.
func (v *victim) bounded(t *testing.T) {
	t.Helper()
	for name, value := range v.gauges() {
		if value > bounds[name]+whole {
			t.Errorf("%s is %.0f, more than %.0f", name, value, bounds[name])
		}
	}
}

// gauges are the metrics that bounds names.
func (v *victim) gauges() map[string]float64 {
	response, err := http.Get("http://" + v.metrics + "/metrics")
	if err != nil {
		v.t.Error(err)
		return nil
	}
	defer response.Body.Close()
	out := make(map[string]float64)
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if _, is := bounds[name]; is {
			value, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				v.t.Error(err)
			}
			out[name] += value
		}
	}
	if len(out) != len(bounds) {
		v.t.Errorf("the router shows %v", out)
	}
	return out
}

func (v *victim) log(when string) {
	if _, bytes, ok := v.router.Held(); ok {
		v.t.Logf("%s: %d MiB resident, %v", when, bytes>>20, v.gauges())
	}
}

// dial adds a bad client.
func (v *victim) dial(ctx context.Context, config rpctest.Config) *rpctest.Peer {
	peer, err := rpctest.Dial(ctx, v.address, config)
	if err != nil {
		v.t.Error(err)
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.peers = append(v.peers, peer)
	return peer
}

// close lets all bad clients go.
func (v *victim) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, peer := range v.peers {
		peer.Close()
	}
}

// unfinished sends messages of 8 MiB but for the last byte: 1.9 GiB on 240 calls.
func (v *victim) unfinished(ctx context.Context) {
	var wait sync.WaitGroup
	body := append(rpctest.Prefix(whole), make([]byte, whole-1)...)
	for range 12 {
		wait.Go(func() {
			peer := v.dial(ctx, rpctest.Config{})
			for i := range 20 {
				method := []string{inferencev1.Inference_Generate_FullMethodName, inferencev1.Inference_Tokenize_FullMethodName}[i%2]
				stream, err := peer.Open(method)
				if err != nil {
					return // the router closed the connection
				}
				_ = peer.Send(ctx, stream, body, 16<<10, false) // or the call
			}
		})
	}
	wait.Wait()
}

// unread asks for long answers and reads none: each takes 5 MB as it is, and of
// Tokenize 2 MB.
func (v *victim) unread(ctx context.Context) {
	var wait sync.WaitGroup
	send := func(method string, calls int, message proto.Message) {
		wait.Go(func() {
			body, err := proto.Marshal(message)
			if err != nil {
				v.t.Error(err)
				return
			}
			peer := v.dial(ctx, rpctest.Config{Unread: true})
			for range calls {
				stream, err := peer.Open(method)
				if err != nil {
					return
				}
				_ = peer.Send(ctx, stream, append(rpctest.Prefix(len(body)), body...), 16<<10, true)
			}
		})
	}
	send(inferencev1.Inference_Generate_FullMethodName, 30, v.longest("unread"))
	for range 4 {
		send(inferencev1.Inference_Tokenize_FullMethodName, 20, &inferencev1.TokenizeRequest{Text: strings.Repeat("\x01", 1<<20)})
	}
	wait.Wait()
}

// longest is a request for as much as one can ask for.
func (v *victim) longest(tenant string) *inferencev1.GenerateRequest {
	q := request("Once upon a time", 1000, 0.8, aggregated)
	q.Tenant, q.Logprobs, q.IgnoreEos = tenant, proto.Uint32(20), true
	return q
}

// kept has the router keep 48 answers, which take 50 MB as they are.
func (v *victim) kept(ctx context.Context) {
	var wait sync.WaitGroup
	for i := range 6 {
		wait.Go(func() {
			q := v.longest(fmt.Sprint("kept", i))
			q.MaxTokens, q.ResumableFor = proto.Uint32(400), durationpb.New(5*time.Minute)
			for range 8 {
				if _, err := v.client.Generate(ctx, q); err != nil {
					v.t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}

// values sends 7 MB of nulls, which take 300 MB when they are decoded and made into
// values of a template.
func (v *victim) values(ctx context.Context) {
	nulls := make([]*structpb.Value, 1<<20)
	null := structpb.NewNullValue()
	for i := range nulls {
		nulls[i] = null
	}
	q := &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
		Messages:          []*inferencev1.Message{{Role: "user", Content: "Hello"}},
		TemplateArguments: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewListValue(&structpb.ListValue{Values: nulls})}},
	}}}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if _, err := v.client.Generate(ctx, q); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.ResourceExhausted {
				v.t.Errorf("a million values: %v", err)
			}
		})
	}
	wait.Wait()
}
