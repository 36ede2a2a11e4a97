package mesh_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// Workers start and stop as it is desired, again and again, and the answers that run meanwhile are
// whole. What has stopped is in no list and in no metric, and its event log is closed.
func TestAutoscale(t *testing.T) {
	var prefill, decode atomic.Int64
	prefill.Store(1)
	decode.Store(1)
	o := upOptions(t)
	o.Engine.Name = engines.Simulated
	o.Engine.Simulated.StepTime = latency.Model{BaseMs: 5}
	o.Metrics = "127.0.0.1:0"
	o.Record.Dir = filepath.Join(t.TempDir(), "events")
	if err := o.Autoscale.Set("prefill=0..2,decode=1..3"); err != nil {
		t.Fatal(err)
	}
	o.Desire(func() (s scaling.Sizes) {
		s.Prefill.Desired, s.Decode.Desired = int(prefill.Load()), int(decode.Load())
		return s
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	up, ended := startMesh(ctx, t, o, quiet, telemetry.NewRegistry())
	if len(up.Prefill) != 0 || len(up.Decode) != 1 {
		t.Errorf("it begins with %v and %v", up.Prefill, up.Decode)
	}
	serving := servingWorkers(t, up.Control)
	serving("prefill-1 decode-1")
	prefill.Store(2)
	decode.Store(5) // more than there may be
	serving("prefill-1 prefill-2 decode-1 decode-2 decode-3")
	if _, metrics := get(t, up.Metrics, "/metrics"); !strings.Contains(metrics, `worker="decode-3"`) {
		t.Error("a worker that was started has no metrics")
	}

	var answers sync.WaitGroup
	began := make(chan struct{}, 12)
	for range cap(began) {
		answers.Go(func() { answer(t, up.HTTP, began) })
	}
	for range cap(began) {
		<-began
	}
	prefill.Store(0)
	decode.Store(1)
	serving("decode-1")
	answers.Wait()
	// They may still be ending when they have left the list, and until then nobody gets their names.
	await(t, "metrics of the workers that there are", func() bool {
		_, metrics := get(t, up.Metrics, "/metrics")
		return !strings.Contains(metrics, `worker="decode-2"`) && !strings.Contains(metrics, `worker="decode-3"`) && strings.Contains(metrics, `worker="decode-1"`)
	})
	for _, id := range []string{"prefill-1", "prefill-2", "decode-2", "decode-3"} {
		await(t, "the whole log of "+id, func() bool { return wholeLog(t, o.Record.Dir, id) })
	}
	if wholeLog(t, o.Record.Dir, "decode-1") {
		t.Error("the log of a worker that runs is closed")
	}
	decode.Store(2)
	serving("decode-1 decode-2")

	// Workers that joined from elsewhere count, and their ids are not used again. This process never has
	// less than its least.
	join := func(part mesh.ServeOptions) (leave func()) {
		part.Membership.Endpoints, part.Signals.URLs, part.HTTP, part.Metrics, part.Record.Dir = up.Etcd, up.NATS, "", "", ""
		joined, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			left <- mesh.Serve(joined, part, quiet, prometheus.NewRegistry(), ignore, func(mesh.Part) {})
		}()
		return sync.OnceFunc(func() {
			cancel()
			if err := <-left; err != nil {
				t.Errorf("%s from elsewhere ended with %v", part.ID, err)
			}
		})
	}
	decode.Store(1)
	serving("decode-1")
	leave := join(mesh.ServeOptions{Options: o.Options, Target: "decode", ID: "decode-2"})
	defer leave()
	serving("decode-1 decode-2")
	decode.Store(3)
	serving("decode-1 decode-2 decode-3")
	if logs, err := filepath.Glob(filepath.Join(o.Record.Dir, "decode-2-*.events")); err != nil || len(logs) != 2 {
		t.Errorf("logs of decode-2, which was started here twice: %q, %v", logs, err)
	}
	decode.Store(1)
	serving("decode-1 decode-2")
	leave()
	serving("decode-1")
	decode.Store(2)
	serving("decode-1 decode-2")

	// One that gets no requests does not count.
	excluded := mesh.ServeOptions{Options: o.Options, Target: "decode", ID: "decode-9"}
	excluded.Engine.Simulated.Acceptance = 0.5 // another arithmetic class
	defer join(excluded)()
	serving("decode-1 decode-2 decode-9")
	decode.Store(3)
	serving("decode-1 decode-2 decode-3 decode-9")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// wholeLog says whether the only event log of a worker in a folder is closed.
func wholeLog(t *testing.T, dir, id string) bool {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, id+"-*.events"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs of %s: %q, %v", id, logs, err)
	}
	file, err := os.Open(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	result, err := replay.Run(t.Context(), file)
	return err == nil && result.Incomplete == ""
}

// answer asks for an answer, says when it has begun, and checks that it is whole.
func answer(t *testing.T, address string, began chan<- struct{}) {
	const tokens = 300
	body := fmt.Sprintf(`{"prompt":"Once upon a time","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)
	response, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		began <- struct{}{}
		return
	}
	defer response.Body.Close()
	lines, last, events := bufio.NewScanner(response.Body), "", 0
	for lines.Scan() {
		if line := lines.Text(); line != "" {
			if events++; events == 1 {
				began <- struct{}{}
			}
			last = line
		}
	}
	if events == 0 {
		began <- struct{}{}
	}
	if response.StatusCode != http.StatusOK || last != "data: [DONE]" {
		t.Errorf("%s: %d events, the last is %q, %v", response.Status, events, last, lines.Err())
	}
}

// servingWorkers returns a function that waits until the router lists exactly these workers, and all
// of them serve.
func servingWorkers(t *testing.T, control string) func(want string) {
	t.Helper()
	conn, err := grpc.NewClient(control, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	watch, err := controlv1.NewControlClient(conn).WatchWorkers(t.Context(), &controlv1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return func(want string) {
		t.Helper()
		for {
			list, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, v := range list.GetWorkers() {
				id := v.GetRecord().GetId()
				if !v.GetConnected() || v.GetRecord().GetState() != controlv1.WorkerState_WORKER_STATE_SERVING {
					id += " (" + api.Name(v.GetRecord().GetState()) + ")"
				}
				ids = append(ids, id)
			}
			if strings.Join(ids, " ") == want {
				return
			}
		}
	}
}

func TestAutoscaleOptions(t *testing.T) {
	for text, want := range map[string]string{
		"decode=0..2":                    "no decode worker at first",
		"prefill=1..257":                 "at most 256 workers",
		"prefill=0..1,decode=1..1":       "",
		"prefill=1..256,decode=256..256": "",
	} {
		o := upOptions(t)
		if err := o.Autoscale.Set(text); err != nil {
			t.Fatal(err)
		}
		err := o.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
