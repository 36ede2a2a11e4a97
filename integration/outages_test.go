package integration_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// awayFor is how long etcd and NATS are gone: longer than every lease.
const awayFor = lease + 2*time.Second

// Advisory signals: without etcd and NATS, nothing fails, not even when workers
// leave, of which nobody can be told.
func serversGoAway(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	servers, scaler := clustertest.Need[clustertest.ServerStopper](t, c), clustertest.Need[clustertest.Scaler](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	load.AwaitServed(t, streams)
	servers.StopServers(t)
	clustertest.Pass(awayFor)
	load.AwaitServed(t, streams)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		scaler.Scale(t, role, 1)
		load.AwaitServed(t, streams)
	}
	servers.StartServers(t)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		scaler.Scale(t, role, 2)
	}
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		awaitUsed(t, load, c.Router().AwaitPool(t, role, 2), time.Now())
	}
	load.Stop(t)
}

// A router that is asked to end finishes what it has. The one that comes after
// it finds the workers by itself.
func routerRestarts(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	restarter := clustertest.Need[clustertest.RouterRestarter](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	load.AwaitServed(t, streams)
	restarter.RestartRouter(t)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		awaitUsed(t, load, c.Router().AwaitPool(t, role, 2), time.Now())
	}
	// Nobody listened for a moment: what was sent then was refused, but nothing
	// that had begun was lost.
	for _, f := range load.Failures() {
		if f.Tokens > 0 || status.Code(f.Err) != codes.Unavailable {
			t.Errorf("request failed %v", f)
		}
	}
	load.Stop(t)
}

// What a router that died had begun is lost to its clients, since nobody else
// knows of it; on the workers nothing of it stays.
func routerKilled(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	restarter := clustertest.Need[clustertest.RouterRestarter](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	load.AwaitServed(t, streams)
	restarter.KillRouter(t)
	for _, role := range []controlv1.Role{decodeRole, prefillRole} {
		awaitUsed(t, load, c.Router().AwaitPool(t, role, 2), time.Now())
	}
	for _, f := range load.Failures() {
		if status.Code(f.Err) != codes.Unavailable {
			t.Errorf("request failed %v", f)
		}
	}
	load.Stop(t)
}

// One worker of each role dies while another starts, leaves, or is frozen for a
// moment, again and again, and clients vanish besides. One worker of each role is
// well at any time, so that no request fails.
func muchAtATime(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	scaler, killer := clustertest.Need[clustertest.Scaler](t, c), clustertest.Need[clustertest.Killer](t, c)
	pauser := clustertest.Need[clustertest.Pauser](t, c)
	load := clustertest.StartLoad(t, c.Router(), streams, asks)
	for round, role := range []controlv1.Role{decodeRole, prefillRole} {
		other := decodeRole + prefillRole - role
		scaler.Scale(t, role, 3)
		frozen := c.Router().AwaitPool(t, other, 2)[round%2]
		killed := c.Router().Busiest(t, role)
		pauser.Pause(t, frozen)
		killer.Kill(t, killed)
		vanish(t, c.Router(), asks)
		pauser.Unpause(t, frozen)
		scaler.Scale(t, role, 2)
		load.AwaitEach(t)
		for _, r := range []controlv1.Role{role, other} {
			c.Router().AwaitPool(t, r, 2)
		}
	}
	load.Stop(t)
}
