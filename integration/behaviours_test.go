package integration_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	prefillRole = controlv1.Role_ROLE_PREFILL
	decodeRole  = controlv1.Role_ROLE_DECODE
)

// behaviour is what every mesh does, whatever it is made of. It begins with two
// workers of each role, and leaves as many.
type behaviour struct {
	name string
	// run gets requests with the answers that a reference gave to them.
	run func(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask)
}

// behaviours are of meshes on the simulated engine, which takes long enough for
// things to happen meanwhile and little of the processor.
func behaviours() []behaviour {
	return []behaviour{
		{"the same tokens as elsewhere", sameAsReference},
		{"clients that vanish strand nothing", vanishingClients},
		{"pools scale under load", poolsScale},
		{"a rolling restart of both pools", rollingRestart},
		{"workers are killed", workersKilled},
		{"the only decode worker is killed", onlyWorkerKilled},
		{"workers freeze", workersFreeze},
		{"workers are cut off", workersCutOff},
		{"etcd and NATS go away", serversGoAway},
		{"the router restarts", routerRestarts},
		{"the router is killed", routerKilled},
		{"much at a time", muchAtATime},
	}
}

const (
	// simulatedMs is how long a step of the simulated engine takes at least.
	simulatedMs = 5
	// lease is how long etcd keeps the record of a worker that says nothing: less
	// than by default, so that outages which outlive it are short.
	lease = 5 * time.Second
	// streams is how many requests run at a time under load.
	streams = 6
)

// check runs the behaviours against one mesh, each after the other.
func check(t *testing.T, c clustertest.Cluster) {
	asks := simulatedAsks(t)
	for _, b := range behaviours() {
		t.Run(b.name, func(t *testing.T) {
			b.run(t, c, asks)
			c.Router().AwaitIdle(t)
		})
	}
}

// simulatedAsks are requests of every mode, with the answers of a mesh in this
// process.
func simulatedAsks(t *testing.T) []clustertest.Ask {
	t.Helper()
	reference := clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Engine.Name, o.Engine.Simulated.StepTime.BaseMs = engines.Simulated, 1
	})
	return askReference(t, reference.Client, 40)
}

// askReference asks for texts of tokens tokens in every mode, and gives the
// answers of one worker that works alone.
func askReference(t *testing.T, reference *clustertest.Client, tokens uint32) []clustertest.Ask {
	t.Helper()
	var asks []clustertest.Ask
	for i, prompt := range []string{"Once upon a time", longPrompt(1), longPrompt(2), "a", longPrompt(3)} {
		temperature := float32(i%2) * 0.8
		want := generate(t, reference, request(prompt, tokens, temperature, aggregated))
		for _, mode := range []inferencev1.Mode{disaggregated, inferencev1.Mode_MODE_AUTO, aggregated} {
			asks = append(asks, clustertest.Ask{Request: request(prompt, tokens, temperature, mode), Tokens: want.Tokens, Text: want.Text})
		}
	}
	return asks
}

// Every request alone, and then among others.
func sameAsReference(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	for _, ask := range asks {
		r := generate(t, c.Router(), ask.Request)
		if !slices.Equal(r.Tokens, ask.Tokens) || r.Text != ask.Text {
			t.Errorf("tokens %v, want %v; route %v", r.Tokens, ask.Tokens, r.Finished.GetRoute())
		}
		if mode := ask.Request.GetMode(); mode != inferencev1.Mode_MODE_AUTO {
			checkRoute(t, r, mode)
		}
	}
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	load.AwaitServed(t, 3*len(asks))
	load.Stop(t)
}

// Each pool goes to three workers and back under load: every new one is used
// within seconds, and no request notices that one leaves.
func poolsScale(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	scaler := clustertest.Need[clustertest.Scaler](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	for _, role := range []controlv1.Role{prefillRole, decodeRole} {
		began := time.Now()
		scaler.Scale(t, role, 3)
		started := time.Now()
		ids := c.Router().AwaitPool(t, role, 3)
		awaitUsed(t, load, ids, began)
		t.Logf("%v: three workers started in %v and were all used %v later", role, started.Sub(began).Round(time.Millisecond), time.Since(started).Round(time.Millisecond))
		scaler.Scale(t, role, 1)
		c.Router().AwaitPool(t, role, 1)
		load.AwaitServed(t, 2*streams)
		scaler.Scale(t, role, 2)
		awaitUsed(t, load, c.Router().AwaitPool(t, role, 2), time.Now())
	}
	load.Stop(t)
}

// awaitUsed waits until each of the workers was named in an answer since then.
func awaitUsed(t *testing.T, load *clustertest.Load, ids []string, since time.Time) {
	t.Helper()
	clustertest.Await(t, func() string {
		for _, id := range ids {
			if !load.Used(id, since) {
				return fmt.Sprintf("%s was not used", id)
			}
		}
		return ""
	})
}

// All workers of both pools are replaced, one after the other.
func rollingRestart(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	restarter := clustertest.Need[clustertest.WorkerRestarter](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		before := c.Router().AwaitPool(t, role, 2)
		for _, id := range before {
			restarter.RestartWorker(t, id)
			c.Router().AwaitPool(t, role, 2)
		}
		after := c.Router().AwaitPool(t, role, 2)
		for _, id := range before {
			if slices.Contains(after, id) {
				t.Errorf("%s was not replaced", id)
			}
		}
		awaitUsed(t, load, after, time.Now())
	}
	load.Stop(t)
}

// Workers die while requests run on them. Others go on with the same tokens.
func workersKilled(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	killer, scaler := clustertest.Need[clustertest.Killer](t, c), clustertest.Need[clustertest.Scaler](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		killer.Kill(t, c.Router().Busiest(t, role))
		load.AwaitServed(t, 2*streams)
		scaler.Scale(t, role, 2)
		awaitUsed(t, load, c.Router().AwaitPool(t, role, 2), time.Now())
	}
	load.Stop(t)
}

// With nobody left to decode, requests end with a typed error at once, and are
// served again when there is somebody.
func onlyWorkerKilled(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	killer, scaler := clustertest.Need[clustertest.Killer](t, c), clustertest.Need[clustertest.Scaler](t, c)
	scaler.Scale(t, decodeRole, 1)
	c.Router().AwaitPool(t, decodeRole, 1)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	load.AwaitServed(t, streams)
	before := load.Failures()
	killed := time.Now()
	killer.Kill(t, c.Router().Busiest(t, decodeRole))
	var failures []clustertest.Failure
	clustertest.Await(t, func() string {
		if failures = append(failures, load.Failures()...); len(failures) < streams {
			return fmt.Sprintf("%d requests failed after the only decode worker was killed", len(failures))
		}
		return ""
	})
	t.Logf("%d requests failed within %v", len(failures), time.Since(killed).Round(time.Millisecond))
	scaler.Scale(t, decodeRole, 2)
	c.Router().AwaitPool(t, decodeRole, 2)
	failures = append(failures, load.Failures()...)
	load.AwaitServed(t, 2*streams)
	for _, f := range before {
		t.Errorf("before the worker was killed, a request failed %v", f)
	}
	for _, f := range failures {
		if status.Code(f.Err) != codes.Unavailable || rpc.Reason(f.Err) == "" {
			t.Errorf("request failed %v, with the reason %q", f, rpc.Reason(f.Err))
		}
	}
	load.Stop(t)
}

// Workers that freeze with their connections open are found out: their requests
// go on elsewhere. When they thaw they are used again, and what they then send of
// requests that have gone on without them harms nobody.
func workersFreeze(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	pauser := clustertest.Need[clustertest.Pauser](t, c)
	silence(t, c, asks, pauser.Pause, pauser.Unpause)
}

// The same with workers that nothing reaches.
func workersCutOff(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	cutter := clustertest.Need[clustertest.Cutter](t, c)
	silence(t, c, asks, cutter.Cut, cutter.Heal)
}

// silence makes a worker of each role fall silent under load, and speak again.
func silence(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask, begin, end func(testing.TB, string)) {
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		ids := c.Router().AwaitPool(t, role, 2)
		silent := c.Router().Busiest(t, role)
		begin(t, silent)
		began := time.Now()
		load.AwaitEach(t)
		t.Logf("%v: every stream had its answer from others within %v", role, time.Since(began).Round(time.Millisecond))
		c.Router().AwaitPool(t, role, 1)
		end(t, silent)
		c.Router().AwaitPool(t, role, 2)
		awaitUsed(t, load, ids, time.Now())
	}
	load.Stop(t)
}
