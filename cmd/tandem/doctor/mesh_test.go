package doctor_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// worker is one that serves and reports.
func worker(id string, role controlv1.Role, change ...func(*controlv1.WorkerView)) *controlv1.WorkerView {
	v := &controlv1.WorkerView{
		Record: &controlv1.WorkerRecord{
			Id: id, Role: role, State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: "fable", LayoutDigest: 1, Version: "v1",
		},
		Load: &controlv1.LoadReport{}, LoadAge: durationpb.New(time.Second), Connected: true, Registered: true,
	}
	for _, c := range change {
		c(v)
	}
	return v
}

func list(views ...*controlv1.WorkerView) *controlv1.ListWorkersResponse {
	return &controlv1.ListWorkersResponse{Workers: views}
}

// check compares the checks that are not ok with want: name, status and a part of what they say.
func check(t *testing.T, name string, checks []doctor.Check, want ...[3]string) {
	t.Helper()
	var bad []doctor.Check
	for _, c := range checks {
		if c.Name == "" || c.Detail == "" || c.Status != doctor.OK && c.Status != doctor.Skipped && c.Advice == "" {
			t.Errorf("%s: it does not say what is wrong, or what to do: %+v", name, c)
		}
		if c.Status != doctor.OK {
			bad = append(bad, c)
		}
	}
	if len(bad) != len(want) {
		t.Errorf("%s: %+v, want %v", name, bad, want)
		return
	}
	for i, c := range bad {
		if c.Name != want[i][0] || string(c.Status) != want[i][1] || !strings.Contains(c.String(), want[i][2]) {
			t.Errorf("%s: %+v, want %v", name, c, want[i])
		}
	}
}

func TestMesh(t *testing.T) {
	const prefill, decode = controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE
	type v = *controlv1.WorkerView
	draining := func(w v) { w.Record.State = controlv1.WorkerState_WORKER_STATE_DRAINING }
	for _, c := range []struct {
		name string
		list *controlv1.ListWorkersResponse
		want [][3]string
	}{
		{"all well", list(worker("p", prefill), worker("d", decode)), nil},
		{"etcd is down", &controlv1.ListWorkersResponse{Workers: []v{worker("p", prefill), worker("d", decode)}, Old: true, Age: durationpb.New(time.Minute)}, [][3]string{
			{"membership", "failed", "etcd has not answered the router for 1m0s"},
		}},
		{"nobody", list(), [][3]string{{"workers", "failed", "start a decode worker"}, {"versions", "skipped", ""}}},
		{"no decode worker", list(worker("p", prefill)), [][3]string{{"workers", "failed", "prefill 1, decode 0"}}},
		{"no decode worker, and none is needed", list(worker("p", prefill, func(w v) { w.Record.WholeRequests = true })), [][3]string{
			{"workers", "warning", "prefill workers serve alone"},
		}},
		{"decode workers are enough", list(worker("d", decode)), nil},
		{"no model has both", list(worker("p", prefill), worker("d", decode, func(w v) { w.Record.Model = "other" })), [][3]string{{"workers", "failed", "no request of fable can be served"}}},
		{"one drains", list(worker("p", prefill), worker("d1", decode), worker("d2", decode, draining)), [][3]string{{"draining", "warning", "d2: 'tandem undrain ID'"}}},
		{"the last one drains", list(worker("p", prefill), worker("d", decode, draining)), [][3]string{{"workers", "failed", ""}, {"draining", "warning", "d"}}},
		{"no connection", list(worker("p", prefill), worker("d1", decode), worker("d2", decode, func(w v) { w.Connected, w.Excluded = false, "refused" })), [][3]string{
			{"connections", "failed", "d2 (d2: refused)"},
		}},
		{"not in etcd", list(worker("p", prefill), worker("d", decode, func(w v) { w.Registered = false })), [][3]string{{"connections", "warning", "d run but are not in etcd"}}},
		{"old reports", list(worker("p", prefill, func(w v) { w.LoadAge = durationpb.New(17830 * time.Millisecond) }), worker("d", decode, func(w v) { w.Load = nil })), [][3]string{
			{"load reports", "warning", "late from p (none for 17.8s), d (none yet): check that NATS"},
		}},
		{"avoided", list(worker("p", prefill), worker("d1", decode), worker("d2", decode, func(w v) { w.Excluded = "silent" })), [][3]string{{"trust", "warning", "d2 (silent)"}}},
		{"layouts of one pool", list(worker("p", prefill), worker("d1", decode), worker("d2", decode, func(w v) { w.Record.LayoutDigest = 2 })), [][3]string{
			{"KV layouts", "warning", "fable have 2 layouts"},
		}},
		{"no common layout", list(worker("p", prefill), worker("d", decode, func(w v) { w.Record.LayoutDigest = 2 })), [][3]string{{"KV layouts", "failed", "no KV can be sent"}}},
		{"layouts of two models", list(worker("p", prefill), worker("d", decode), worker("d2", decode, func(w v) { w.Record.LayoutDigest, w.Record.Model = 2, "other" })), nil},
		{"versions", list(worker("p", prefill), worker("d", decode, func(w v) { w.Record.Version = "v2" })), [][3]string{{"versions", "warning", "v1 (p), v2 (d)"}}},
	} {
		check(t, c.name, doctor.Mesh(c.list), c.want...)
	}
	var many []v
	for _, id := range strings.Split("abcdefgh", "") {
		many = append(many, worker(id, decode, draining))
	}
	if checks := doctor.Mesh(list(many...)); !strings.Contains(checks[2].Detail, "a, b, c, d, e and 3 more") {
		t.Errorf("many are named as %q", checks[2].Detail)
	}
}
