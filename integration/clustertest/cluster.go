package clustertest

import (
	"reflect"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Cluster is a mesh of any kind, as a behaviour sees it. What may be done to it
// are the abilities below, of which each kind has some.
type Cluster interface {
	// Router is a client of its router, which stays the same when the router
	// restarts.
	Router() *Client
	// Cannot says why it lacks an ability, by the ability's name.
	Cannot(ability string) string
}

// Scaler changes how many workers there are.
type Scaler interface {
	// Scale brings a pool to n workers. It returns once those that are new were
	// started, and those that left have drained and exited by themselves.
	Scale(t testing.TB, role controlv1.Role, n int)
}

// WorkerRestarter replaces workers.
type WorkerRestarter interface {
	// RestartWorker asks a worker to end, waits until it has drained and exited by
	// itself, and starts one in its place.
	RestartWorker(t testing.TB, worker string)
}

// Killer ends workers without warning.
type Killer interface {
	// Kill ends a worker with SIGKILL. Scale starts another in its place.
	Kill(t testing.TB, worker string)
}

// Pauser stops workers without ending them.
type Pauser interface {
	// Pause freezes every thread of a worker, whose connections stay.
	Pause(t testing.TB, worker string)
	// Unpause lets it go on.
	Unpause(t testing.TB, worker string)
}

// Cutter takes workers off the network.
type Cutter interface {
	// Cut takes a worker off the network: what it sends and is sent is lost, and
	// nobody is told.
	Cut(t testing.TB, worker string)
	// Heal undoes Cut.
	Heal(t testing.TB, worker string)
}

// ServerStopper stops etcd and NATS and starts them again with their data.
type ServerStopper interface {
	StopServers(t testing.TB)
	StartServers(t testing.TB)
}

// RouterRestarter ends the router and starts it again.
type RouterRestarter interface {
	// KillRouter ends the router with SIGKILL and starts it again under the same
	// address.
	KillRouter(t testing.TB)
	// RestartRouter asks the router to end, waits, and starts it again under the
	// same address.
	RestartRouter(t testing.TB)
}

// Need is c with an ability. It skips the test, and says why, if c lacks it.
func Need[Ability any](t testing.TB, c Cluster) Ability {
	t.Helper()
	able, ok := c.(Ability)
	if !ok {
		ability := reflect.TypeFor[Ability]().Name()
		t.Skipf("no %s: %s", ability, c.Cannot(ability))
	}
	return able
}
