package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// impostor answers Identify as a test wants it.
type impostor struct {
	workerv1.UnimplementedWorkerServer
	record *controlv1.WorkerRecord
	err    error
}

func (s *impostor) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	return &workerv1.IdentifyResponse{Record: s.record}, s.err
}

// A server that answers with another id, epoch or role is not the worker. Nothing that
// strangers say keeps operators from seeing the list.
func TestImpostors(t *testing.T) {
	other := func(change func(*controlv1.WorkerRecord)) *controlv1.WorkerRecord {
		r := decodeRecord("d2")
		change(r)
		return r
	}
	for _, test := range []struct {
		name string
		impostor
		want string
	}{
		{"another id", impostor{record: other(func(r *controlv1.WorkerRecord) { r.Id = "d9" })}, `another worker answers at its address: "d9"`},
		{"another epoch", impostor{record: other(func(r *controlv1.WorkerRecord) { r.Epoch = 9 })}, "another start of this worker answers at its address"},
		{"another role", impostor{record: other(func(r *controlv1.WorkerRecord) { r.Role = controlv1.Role_ROLE_PREFILL })}, "another worker answers at its address"},
		{"no record", impostor{}, "answers at its address"},
		{"a long error in letters of two bytes", impostor{err: status.Error(codes.Internal, strings.Repeat("é", 3000))}, "éé"},
		{"the same, one byte on", impostor{err: status.Error(codes.Internal, "e"+strings.Repeat("é", 3000))}, "eéé"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, decodeRecord("d1"))
				server := rpc.NewServer(rpc.ServerConfig{Name: "impostor"})
				workerv1.RegisterWorkerServer(server, &test.impostor)
				served, listener := make(chan struct{}), m.net.Listen("d2:1")
				go func() {
					defer close(served)
					_ = server.Serve(listener) // until it is stopped
				}()
				defer func() {
					_ = server.Stop(context.Background())
					<-served
				}()
				m.members.set(true, decodeRecord("d1"), decodeRecord("d2"))
				time.Sleep(5 * time.Second)
				response, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
				if err != nil {
					t.Fatal("operators see nothing:", err)
				}
				for _, w := range response.GetWorkers() {
					if met := w.GetRecord().GetId() == "d1"; met != w.GetConnected() {
						t.Errorf("%v", w)
					} else if !met && !strings.Contains(w.GetExcluded(), test.want) {
						t.Errorf("shown as %q, want %q", w.GetExcluded(), test.want)
					}
				}
				for range 4 {
					if r := m.generate(t.Context(), ask(agg, 20)); r.err != nil || r.finished.GetRoute().GetDecode() != "d1" || r.finished.GetRoute().GetRetries() != 0 {
						t.Errorf("route %v, error %v", r.finished.GetRoute(), r.err)
					}
				}
				if n := len(m.log.String()); n > 8<<10 {
					t.Errorf("%d bytes were logged", n)
				}
			})
		})
	}
}

// A worker that starts behind hundreds of records at which nobody ever answers is asked
// before those of them that were not asked yet.
func TestNewWorkersBeforeSilentRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("Go's race detector crashes on so many timers in one bubble (SIGSEGV in runtime.(*timer).modify)")
	}
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		hole := m.net.Listen("hole:1") // which accepts nobody
		defer func() { _ = hole.Close() }()
		records := []*controlv1.WorkerRecord{decodeRecord("d1")}
		for i := range 600 { // 37 s of attempts, 64 at a time, four seconds each
			silent := decodeRecord(fmt.Sprintf("silent-%04d", i))
			silent.Addresses = []string{"hole:1", "hole:1", "hole:1", "hole:1"}
			records = append(records, silent)
		}
		m.members.set(true, records...)
		time.Sleep(10 * time.Second)
		m.workers = append(m.workers, m.net.Start(decodeRecord("d2"), nil))
		again := proto.CloneOf(decodeRecord("d1"))
		again.Epoch = 2
		m.workers[0].Kill()
		m.workers[0] = m.net.Start(again, nil)
		records[0] = again
		m.members.set(true, append(records, decodeRecord("d2"))...)
		time.Sleep(8 * time.Second) // an attempt that runs takes four
		synctest.Wait()
		if connected := m.connected(); !connected["d1"] || !connected["d2"] {
			t.Errorf("connected to the worker that was started again: %v, to the new one: %v", connected["d1"], connected["d2"])
		}
	})
}

// That there are more records than are kept track of is said, and not with each view.
func TestTooManyRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("has more goroutines than the race detector keeps apart")
	}
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		records := []*controlv1.WorkerRecord{decodeRecord("d1")}
		for i := range 5000 {
			records = append(records, decodeRecord(fmt.Sprintf("nobody-%04d", i)))
		}
		for range 3 {
			m.members.set(true, records...)
			time.Sleep(time.Second)
		}
		if n := strings.Count(m.log.String(), "too many workers in etcd"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}
