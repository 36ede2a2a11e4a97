// Package processes starts whole meshes on this machine, each part in a process of its
// own, for benchmarks that compare them. etcd and NATS are embedded in the process
// that measures, where they do next to nothing while nobody comes or goes.
//
// The packages of cmd/tandem/bench and commands import it. A Mesh owns its processes,
// a goroutine for each that reads what it prints and waits for its end, and the
// servers; Stop ends them all.
package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Plan says what a mesh is made of.
type Plan struct {
	// Binary is the tandem to run; empty: this one.
	Binary string
	// Prefill and Decode are how many workers of each kind run.
	Prefill, Decode int
	// Arguments go to every part, Worker to the workers only: "--model", "DIR", ….
	Arguments, Worker []string
	// Join, if set, starts further workers in this process, once etcd and NATS run, and says
	// how many. Who called Start ends them, after Stop.
	Join func(ctx context.Context, etcd, nats string) (workers int, err error)
	// Cores are the CPUs of each worker, in turn, prefill first, and RouterCores those
	// of the router; nil: all.
	Cores       [][]int
	RouterCores []int
	// Operator are the credentials of who asks the router for its workers; nil: nothing is
	// encrypted.
	Operator credentials.TransportCredentials
	// StartTimeout bounds the start, the loading of a model included.
	StartTimeout time.Duration
}

// Mesh is a running mesh.
type Mesh struct {
	// Address is where the router serves gRPC, and HTTP the address of its OpenAI API; empty
	// if no argument asks for it.
	Address, HTTP string
	// Metrics is where its metrics are; empty if no argument asks for it.
	Metrics string

	dir   *tempfolder.Folder
	etcd  *embedded.Etcd
	nats  *embedded.NATS
	parts []*process
}

// stopTimeout bounds the end of one process: what it does not finish in this time
// it does not finish.
const stopTimeout = 10 * time.Second

// Start starts a mesh and returns once its router has a worker of every kind. What
// fails is stopped again. The processes outlive ctx; it bounds only the start.
func Start(ctx context.Context, plan Plan) (_ *Mesh, err error) {
	if plan.Binary == "" {
		if plan.Binary, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find the program to start: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, plan.StartTimeout)
	defer cancel()
	m := &Mesh{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	if m.dir, err = tempfolder.Make("bench"); err != nil {
		return nil, err
	}
	if m.etcd, err = embedded.StartEtcd(ctx, embedded.EtcdConfig{DataDir: filepath.Join(m.dir.Path, "data")}); err != nil {
		return nil, err
	}
	if m.nats, err = embedded.StartNATS(embedded.NATSConfig{}); err != nil {
		return nil, err
	}
	for i := range plan.Prefill + plan.Decode {
		role, number := "prefill", i+1
		if i >= plan.Prefill {
			role, number = "decode", i-plan.Prefill+1
		}
		var cores []int
		if i < len(plan.Cores) {
			cores = plan.Cores[i]
		}
		arguments := slices.Concat(plan.Arguments, plan.Worker)
		if err := m.add(ctx, plan.Binary, role, fmt.Sprintf("%s-%d", role, number), cores, arguments); err != nil {
			return nil, err
		}
	}
	workers := plan.Prefill + plan.Decode
	if plan.Join != nil {
		joined, err := plan.Join(ctx, m.etcd.Endpoint(), m.nats.URL())
		if err != nil {
			return nil, err
		}
		workers += joined
	}
	// Last, so that it is ready only when it has workers.
	arguments := slices.Concat(plan.Arguments, []string{"--control", "127.0.0.1:0"})
	if err := m.add(ctx, plan.Binary, "router", "router-1", plan.RouterCores, arguments); err != nil {
		return nil, err
	}
	router := m.parts[len(m.parts)-1]
	m.Address = router.value("grpc")
	control := router.value("control")
	if m.Address == "" || control == "" {
		return nil, fmt.Errorf("the router did not say where it listens: %s", router.said())
	}
	if url, _, _ := strings.Cut(router.value("http"), " "); url != "" {
		url = strings.TrimPrefix(url, "https://")
		m.HTTP = strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/v1")
	}
	m.Metrics = strings.TrimSuffix(strings.TrimPrefix(router.value("metrics"), "http://"), "/metrics")
	if err := waitWorkers(ctx, control, plan.Operator, workers); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Mesh) add(ctx context.Context, binary, role, id string, cores []int, arguments []string) error {
	arguments = slices.Concat([]string{
		"serve", "--target", role, "--id", id, "--listen", "127.0.0.1:0",
		"--etcd", m.etcd.Endpoint(), "--nats", m.nats.URL(), "--stop-timeout", "2s",
	}, arguments)
	p, err := launch(binary, id, arguments, cores)
	if err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	m.parts = append(m.parts, p)
	return p.waitReady(ctx)
}

// CPUSeconds is what each part has used since it started, user and system, by its
// id. A part that is gone is left out.
func (m *Mesh) CPUSeconds() map[string]float64 {
	used := make(map[string]float64, len(m.parts))
	for _, p := range m.parts {
		if seconds, err := processor.CPUSeconds(p.cmd.Process.Pid); err == nil {
			used[p.name] = seconds
		}
	}
	return used
}

// RouterPID is the router's process.
func (m *Mesh) RouterPID() int { return m.parts[len(m.parts)-1].cmd.Process.Pid }

// Failed is the first part that has ended by itself, as an error; nil if all run.
func (m *Mesh) Failed() error {
	for _, p := range m.parts {
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %w: %s", p.name, errors.Join(p.err, errEnded), p.said())
		default:
		}
	}
	return nil
}

var errEnded = errors.New("it should have kept running")

// Stop ends everything, the router first, and waits for it.
func (m *Mesh) Stop() error {
	var errs []error
	for _, p := range slices.Backward(m.parts) {
		errs = append(errs, p.stop(stopTimeout))
	}
	if m.nats != nil {
		m.nats.Close()
	}
	if m.etcd != nil {
		m.etcd.Close()
	}
	return errors.Join(append(errs, m.dir.Remove())...)
}

// Threads are the arguments for workers of n threads.
func Threads(n int) []string { return []string{"--threads", strconv.Itoa(n)} }

// waitWorkers waits until the router that serves operators at control is connected to
// so many workers and has heard how busy they are.
func waitWorkers(ctx context.Context, control string, operator credentials.TransportCredentials, wanted int) error {
	conn, err := rpc.Dial(control, rpc.ClientConfig{Name: "tandem-bench", Credentials: operator})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := controlv1.NewControlClient(conn).WatchWorkers(ctx, &controlv1.ListWorkersRequest{})
	there := 0
	for err == nil {
		var list *controlv1.ListWorkersResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		there = 0
		for _, w := range list.GetWorkers() {
			if w.GetConnected() && w.GetLoad() != nil {
				there++
			}
		}
		if there >= wanted {
			return nil
		}
	}
	return fmt.Errorf("the router is connected to %d of %d workers: %w", there, wanted, err)
}
