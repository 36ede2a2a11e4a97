package commands_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

func twoWorkers() *controlv1.ListWorkersResponse {
	return &controlv1.ListWorkersResponse{Workers: []*controlv1.WorkerView{
		{
			Record: &controlv1.WorkerRecord{
				Id: "p1", Role: controlv1.Role_ROLE_PREFILL, Epoch: 0xabc, Addresses: []string{"unix:///p", "h:1"},
				State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: "fable", ModelDigest: "0123456789abcdef", Layout: &kvtransferv1.Layout{ArithmeticClass: "cpu/bf16/3"}, Engine: "cpu", Version: "devel", Host: "h",
			},
			Load: &controlv1.LoadReport{
				RunningSequences: 1, WaitingSequences: 2, WaitingTokens: 300, BlocksFree: 4, BlocksReserved: 5,
				BlocksQuarantined: 6, BlocksTotal: 70,
			},
			LoadAge: durationpb.New(250 * time.Millisecond), Connected: true, Registered: true, InFlight: 3,
		},
		{Record: &controlv1.WorkerRecord{
			Id: "d1", Role: controlv1.Role_ROLE_DECODE, State: controlv1.WorkerState_WORKER_STATE_DRAINING, Model: "fable", Engine: "cpu",
		}, Connected: false, Registered: true},
		{Record: &controlv1.WorkerRecord{
			Id: "d2", Role: controlv1.Role_ROLE_DECODE, State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: "fable", ModelDigest: "fedcba9876543210", Engine: "cpu",
		}, Connected: true, Registered: true, Excluded: "other weights"},
	}}
}

const goldenWorkers = `{"workers":[{"id":"p1","role":"prefill","state":"serving","addresses":["unix:///p","h:1"],"engine":"cpu",` +
	`"model":"fable","model_digest":"0123456789abcdef","arithmetic_class":"cpu/bf16/3","version":"devel","host":"h","epoch":"0000000000000abc","connected":true,"registered":true,"in_flight":3,"excluded":"",` +
	`"load":{"age_ms":250,"running":1,"waiting":2,"waiting_tokens":300,"blocks_free":4,"blocks_reserved":5,"blocks_quarantined":6,"blocks_total":70}},` +
	`{"id":"d1","role":"decode","state":"draining","addresses":[],"engine":"cpu","model":"fable","model_digest":"","arithmetic_class":"","version":"","host":"",` +
	`"epoch":"0000000000000000","connected":false,"registered":true,"in_flight":0,"excluded":"","load":null},` +
	`{"id":"d2","role":"decode","state":"serving","addresses":[],"engine":"cpu","model":"fable","model_digest":"fedcba9876543210","arithmetic_class":"","version":"","host":"",` +
	`"epoch":"0000000000000000","connected":true,"registered":true,"in_flight":0,"excluded":"other weights","load":null}]}` + "\n"

func TestWorkers(t *testing.T) {
	addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{twoWorkers()}}).start(t)
	got := run(t.Context(), "", nil, "workers", "--control", addr, "--json")
	if diff := cmp.Diff(goldenWorkers, got.stdout); diff != "" || got.status != 0 {
		t.Errorf("status %d, %s, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
	got = run(t.Context(), "", nil, "workers", "--control", addr)
	want := "ID  ROLE     STATE                    ADDRESS    MODEL  DIGEST        RUNNING  WAITING  BLOCKS FREE  IN FLIGHT  AGE\n" +
		"p1  prefill  serving                  unix:///p  fable  0123456789ab  1        2        4/70         3          300ms\n" +
		"d1  decode   draining, no connection  -          fable  -             -        -        -            0          -\n" +
		"d2  decode   serving, excluded        -          fable  fedcba987654  -        -        -            0          -\n" +
		"d2 gets no requests: other weights\n"
	if diff := cmp.Diff(want, got.stdout); diff != "" || got.status != 0 {
		t.Errorf("status %d, %s, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
	checkFailure(t, run(t.Context(), "", nil, "workers", "--control", addr, "--role", "cook"), 2, `"cook" is not a role of a worker`)
}

// TestWorkersOfPools checks the lines below the table: the desired sizes and their reasons.
func TestWorkersOfPools(t *testing.T) {
	list := twoWorkers()
	list.Pools = []*controlv1.PoolSize{
		{Pool: controlv1.Role_ROLE_PREFILL, Model: "fable", Workers: 1, Desired: 2, Reason: "many come"},
		{Pool: controlv1.Role_ROLE_DECODE, Model: "fable", Workers: 2, Desired: 2, Reason: "they are enough"},
	}
	addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{list}}).start(t)
	got := run(t.Context(), "", nil, "workers", "--control", addr)
	const want = "d2 gets no requests: other weights\nprefill has 1 and wants 2: many come\ndecode has 2 and wants 2: they are enough\n"
	if got.status != 0 || !strings.HasSuffix(got.stdout, want) {
		t.Errorf("status %d, %s, output\n%s", got.status, got.stderr, got.stdout)
	}
	got = run(t.Context(), "", nil, "workers", "--control", addr, "--json")
	if want := `"pools":[{"pool":"prefill","model":"fable","workers":1,"desired":2,"reason":"many come"},{"pool":"decode"`; !strings.Contains(got.stdout, want) {
		t.Errorf("it has no %s: %s", want, got.stdout)
	}
}

// Long names leave columns out, and at the end shorten the ids.
func TestWorkersFitATerminal(t *testing.T) {
	long := strings.Repeat("0123456789", 7)
	all := []string{"ADDRESS", "RUNNING", "WAITING", "MODEL", "DIGEST", "AGE"}
	for _, c := range []struct {
		name, id, address, model string
		without                  int // of all
		id2                      string
	}{
		{"an address", "decode-1", "unix:///run/tandem/decode-1.sock", "fable", 1, "decode-1"},
		{"a pod's name", "tandem-decode-7c9d8b7f6-x2x4l", "10.0.0.7:7071", "fable", 3, "tandem-decode-7c9d8b7f6-x2x4l"},
		{"a model's name", "tandem-decode-7c9d8b7f6-x2x4l", "10.0.0.7:7071", "a-model-of-a-long-name", 4, "tandem-decode-7c9d8b7f6-x2x4l"},
		{"the longest names", long + "-x2x4l", long + ":1", long, 6, "…"},
	} {
		list := twoWorkers()
		record := list.Workers[1].GetRecord()
		record.Id, record.Addresses, record.Model = c.id, []string{c.address}, c.model
		addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{list}}).start(t)
		got := run(t.Context(), "", nil, "workers", "--control", addr)
		table := got.stdout
		for line := range strings.Lines(table) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 120 {
				t.Errorf("%s: %d columns: %s", c.name, n, line)
			}
		}
		want := "left out to fit: " + strings.Join(all[:c.without], ", ") + "; --json has all\n"
		if got.status != 0 || got.stderr != want || !strings.Contains(table, c.id2) {
			t.Errorf("%s: want %q on stderr and %q in\n%s%s", c.name, want, c.id2, got.stdout, got.stderr)
		}
		asJSON := run(t.Context(), "", nil, "workers", "--control", addr, "--json").stdout
		for _, all := range []string{c.id, c.address, c.model} {
			if !strings.Contains(asJSON, all) {
				t.Errorf("%s: JSON lacks %q", c.name, all)
			}
		}
	}
}

// A list that etcd does not stand for any more says how old it is and who made it.
func TestWorkersOfAnOldView(t *testing.T) {
	for _, c := range []struct {
		age          time.Duration // 0: never
		source       string
		says, asJSON string
	}{
		{0, "", "etcd has not answered this router yet\n", `"old_view":{"age_ms":null,"source":""}`},
		{90 * time.Second, "", "etcd has not answered for 1m30s: workers may have come and gone since\n", `"old_view":{"age_ms":90000,"source":""}`},
		{time.Hour, "file", "etcd does not answer: this list is 1h0m0s old and comes from this router's own copy\n", `"old_view":{"age_ms":3600000,"source":"file"}`},
		{time.Second, "peer", "etcd does not answer: this list is 1s old and comes from another router\n", `"old_view":{"age_ms":1000,"source":"peer"}`},
	} {
		list := twoWorkers()
		if list.Old, list.Source = true, c.source; c.age > 0 {
			list.Age = durationpb.New(c.age)
		}
		addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{list}}).start(t)
		if got := run(t.Context(), "", nil, "workers", "--control", addr); !strings.HasPrefix(got.stdout, c.says+"ID ") {
			t.Errorf("%v, %q: says\n%s", c.age, c.source, got.stdout)
		}
		if got := run(t.Context(), "", nil, "workers", "--control", addr, "--json"); !strings.Contains(got.stdout, c.asJSON) {
			t.Errorf("%v, %q: JSON %s", c.age, c.source, got.stdout)
		}
	}
}

func TestWorkersWatch(t *testing.T) {
	router := &fakeRouter{workers: []*controlv1.ListWorkersResponse{twoWorkers(), {}}}
	got := run(t.Context(), "", nil, "workers", "--watch", "--json", "--control", router.start(t))
	if want := goldenWorkers + `{"workers":[]}` + "\n"; got.stdout != want {
		t.Errorf("output (-want +got):\n%s", cmp.Diff(want, got.stdout))
	}
	checkFailure(t, got, 1, "ended the watch")
}

// Where there are none, it says how to start some.
func TestNoWorkers(t *testing.T) {
	addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{{}}}).start(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no workers: start some with './tandem serve --target=prefill' and './tandem serve --target=decode'\n"},
		{[]string{"--role=decode"}, "no decode workers: start some with './tandem serve --target=decode'\n"},
	} {
		var out, errs strings.Builder
		args := append([]string{"workers", "--control", addr}, c.args...)
		status := commands.Run(t.Context(), commands.Process{Program: "./tandem", Args: args, Stdout: &out, Stderr: &errs})
		if status != 0 || out.String() != c.want {
			t.Errorf("%v: status %d, %q, %s", c.args, status, out.String(), errs.String())
		}
	}
}

func TestDrain(t *testing.T) {
	var asked *controlv1.DrainRequest
	drained := false
	router := &fakeRouter{workers: []*controlv1.ListWorkersResponse{twoWorkers()}, drain: func(r *controlv1.DrainRequest, s grpc.ServerStreamingServer[controlv1.DrainProgress]) error {
		if asked = r; r.GetWorkerId() != "d1" {
			return rpc.Errorf(codes.NotFound, "NO_WORKER", "no worker is called %q: see 'tandem workers'", r.GetWorkerId())
		}
		if drained {
			return nil
		}
		return s.Send(&controlv1.DrainProgress{Sequences: 2, Transfers: 1})
	}}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "drain", "d1", "--grace=30s", "--force", "--json", "--control", addr)
	want := `{"worker":"d1","sequences":2,"transfers":1,"drained":false}` + "\n" + `{"worker":"d1","sequences":0,"transfers":0,"drained":true}` + "\n"
	if got != (outcome{0, want, ""}) || asked.GetGrace().AsDuration() != 30*time.Second || !asked.GetForce() {
		t.Errorf("got %+v, asked %v", got, asked)
	}
	got = run(t.Context(), "", nil, "drain", "d1", "--control", addr)
	if got != (outcome{0, "d1: sequences left 2, transfers left 1\nd1 is drained and leaves the list of 'tandem workers' soon: 'tandem undrain d1' lets d1 take requests again\n", ""}) || asked.GetGrace() != nil || asked.GetForce() {
		t.Errorf("got %+v, asked %v", got, asked)
	}
	// Without etcd, what becomes of the list is said as far as it is known.
	const apart = "d1 is drained. Until etcd answers again, other routers do not know, and 'tandem workers' still lists d1: 'tandem undrain d1' lets d1 take requests again\n"
	router.workers[0].Old = true
	if got = run(t.Context(), "", nil, "drain", "d1", "--control", addr); got.status != 0 || !strings.HasSuffix(got.stdout, "\n"+apart) {
		t.Errorf("without etcd: %+v", got)
	}
	router.workers = nil
	if got = run(t.Context(), "", nil, "drain", "d1", "--control", addr); got.status != 0 || !strings.HasSuffix(got.stdout, "\nd1 is drained: 'tandem undrain d1' lets d1 take requests again\n") {
		t.Errorf("without a list: %+v", got)
	}
	drained = true
	if got = run(t.Context(), "", nil, "drain", "d1", "--control", addr); got != (outcome{0, "d1 is drained already: 'tandem undrain d1' lets d1 take requests again\n", ""}) {
		t.Errorf("a second time: %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "drain", "x", "--control", addr), 1, `no worker is called "x"`)
	checkFailure(t, run(t.Context(), "", nil, "drain"), 2, "tandem drain needs the ID of a worker ('tandem workers' lists them): see 'tandem drain --help'")
}

func TestExplain(t *testing.T) {
	router := &fakeRouter{explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
		return &controlv1.ExplainResponse{
			RequestId: r.GetRequestId(), Arrived: timestamppb.New(time.Unix(0, 0)), Status: "OK",
			Decisions: []*controlv1.Decision{{
				Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "p1", Decode: "d1", Reason: "long prompt",
				Source: "s1", SourceBlocks: 1, Transport: "unix",
				Candidates: []*controlv1.Candidate{
					{WorkerId: "p1", Role: controlv1.Role_ROLE_PREFILL, QueueMs: 1, PrefillMs: 2, TpotMs: 3, CachedTokens: 4, FetchTokens: 7, InFlight: 5, CostMs: 6, TransferMs: 8, TransferBytesPerSecond: 9},
					{WorkerId: "p2", Role: controlv1.Role_ROLE_PREFILL, Excluded: "drains"},
				},
			}},
			Timings: &inferencev1.Timings{PrefillNs: 1e6, TotalNs: 1e6, FetchNs: 0.5e6},
		}, nil
	}}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "explain", "r1", "--json", "--control", addr)
	var explained struct {
		RequestID string `json:"request_id"`
		Decisions []struct {
			Mode         string
			Source       string
			SourceBlocks int `json:"source_blocks"`
			Transport    string
			Candidates   []map[string]any
		}
		TimingMs map[string]any `json:"timing_ms"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &explained); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	want := map[string]any{
		"worker": "p1", "role": "prefill", "excluded": "", "queue_ms": 1.0, "prefill_ms": 2.0, "tpot_ms": 3.0,
		"cached_tokens": 4.0, "fetch_tokens": 7.0, "in_flight": 5.0, "cost_ms": 6.0, "transfer_ms": 8.0, "transfer_bytes_per_second": 9.0,
	}
	if diff := cmp.Diff(want, explained.Decisions[0].Candidates[0]); diff != "" {
		t.Errorf("candidate (-want +got):\n%s", diff)
	}
	if d := explained.Decisions[0]; d.Source != "s1" || d.SourceBlocks != 1 || d.Transport != "unix" {
		t.Errorf("decision %+v", d)
	}
	if explained.RequestID != "r1" || explained.Decisions[0].Mode != "disaggregated" || explained.TimingMs["total"] != 1.0 {
		t.Errorf("got %+v", explained)
	}
	got = run(t.Context(), "", nil, "explain", "r1", "--control", addr)
	for _, part := range []string{"request r1", "attempt 1: disaggregated, prefill p1, decode d1: long prompt", "drains", "1.00 ms = tokenize",
		"block store s1 had announced 1 block of the prompt; the router told p1", "KV went over unix\n", "0.50 ms of prefill were spent on fetching"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("output lacks %q:\n%s", part, got.stdout)
		}
	}
}

// A request that one worker computes has no prefill worker to name.
func TestExplainOneWorker(t *testing.T) {
	router := &fakeRouter{explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
		return &controlv1.ExplainResponse{RequestId: r.GetRequestId(), Arrived: timestamppb.New(time.Unix(0, 0)), Decisions: []*controlv1.Decision{
			{Mode: inferencev1.Mode_MODE_AGGREGATED, Decode: "d1", Reason: "short prompt"},
		}}, nil
	}}
	got := run(t.Context(), "", nil, "explain", "r1", "--control", router.start(t))
	if want := "attempt 1: aggregated, all on d1: short prompt\n"; !strings.Contains(got.stdout, want) {
		t.Errorf("output lacks %q:\n%s", want, got.stdout)
	}
}

// A refused request has no workers: what is said is why, and which there were.
func TestExplainRefused(t *testing.T) {
	router := &fakeRouter{explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
		return &controlv1.ExplainResponse{
			RequestId: r.GetRequestId(), Arrived: timestamppb.New(time.Unix(0, 0)), Status: "RESOURCE_EXHAUSTED", Message: "too late",
			Decisions: []*controlv1.Decision{{Reason: "9.0 ms would go to d1", TtftMs: 12, Candidates: []*controlv1.Candidate{{WorkerId: "d1", Role: controlv1.Role_ROLE_DECODE}}}},
		}, nil
	}}
	got := run(t.Context(), "", nil, "explain", "r1", "--control", router.start(t))
	for _, want := range []string{"RESOURCE_EXHAUSTED: too late\n\nattempt 1: refused: 9.0 ms would go to d1\npredicted: first token 12.00 ms after the request came\n", "\nd1 "} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, got.stdout)
		}
	}
}

// The ids in bodies of HTTP answers have a word before the request's id.
func TestExplainIDsOfHTTP(t *testing.T) {
	known := map[string]bool{"264ba0": true, "264ba0/1": true, "cmpl-mine": true}
	answer := func(id string) (*controlv1.ExplainResponse, error) {
		if !known[id] {
			return nil, rpc.Errorf(codes.NotFound, "REQUEST_NOT_FOUND", "no request %q", id)
		}
		return &controlv1.ExplainResponse{RequestId: id, Arrived: timestamppb.New(time.Unix(0, 0))}, nil
	}
	router := &fakeRouter{
		explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) { return answer(r.GetRequestId()) },
		explainOwn: func(r *controlv1.ExplainOwnRequest) (*controlv1.ExplainResponse, error) {
			return answer(r.GetRequestId())
		},
	}
	addr := router.start(t)
	for _, flags := range [][]string{{"--control", addr}, {"--addr", addr, "--secret", "s"}} {
		for id, want := range map[string]string{
			"264ba0": "264ba0", "cmpl-264ba0": "264ba0", "chatcmpl-264ba0": "264ba0", "cmpl-264ba0/1": "264ba0/1", "cmpl-mine": "cmpl-mine", "cmpl-cmpl-mine": "cmpl-mine",
		} {
			if got := run(t.Context(), "", nil, append([]string{"explain", id}, flags...)...); got.status != 0 || !strings.HasPrefix(got.stdout, "request "+want+",") {
				t.Errorf("%s %v: %+v", id, flags, got)
			}
		}
		for _, id := range []string{"cmpl-", "cmpl-none", "other-264ba0"} {
			checkFailure(t, run(t.Context(), "", nil, append([]string{"explain", id}, flags...)...), 1, fmt.Sprintf("no request %q", id))
		}
	}
}

func TestExplainTokenTimes(t *testing.T) {
	for _, c := range []struct {
		name                      string
		ttft, second, tpot, total int64 // ms
		want                      string
	}{
		{"one token", 100, 0, 0, 100, "\nfirst token after 100.00 ms\n"},
		{"two", 100, 30, 30, 130, "\nfirst token after 100.00 ms, second 30.00 ms later; tpot 30.00 ms\n"},
		{"more", 100, 50, 20, 180, "\nfirst token after 100.00 ms, second 50.00 ms later; tpot 20.00 ms\n"},
	} {
		router := &fakeRouter{explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
			return &controlv1.ExplainResponse{RequestId: "r1", Arrived: timestamppb.New(time.Unix(0, 0)), Status: "OK",
				Timings: &inferencev1.Timings{TtftNs: c.ttft * 1e6, SecondTokenNs: c.second * 1e6, TpotNs: c.tpot * 1e6, TotalNs: c.total * 1e6}}, nil
		}}
		if got := run(t.Context(), "", nil, "explain", "r1", "--control", router.start(t)); !strings.HasSuffix(got.stdout, c.want) {
			t.Errorf("%s: output lacks %q:\n%s", c.name, c.want, got.stdout)
		}
	}
}

func TestProbe(t *testing.T) {
	router := &fakeRouter{}
	addr := router.start(t)
	if got := run(t.Context(), "", nil, "probe", addr); got != (outcome{0, "serving\n", ""}) {
		t.Errorf("got %+v", got)
	}
	router.health.SetServingStatus("decode", healthv1.HealthCheckResponse_NOT_SERVING)
	got := run(t.Context(), "", nil, "probe", addr, "--service=decode", "--json")
	checkFailure(t, got, 1, "is not serving")
	result := last(t, got.stdout)
	if result["status"] != "not_serving" || result["service"] != "decode" || result["address"] != addr {
		t.Errorf("got %v", result)
	}
	checkFailure(t, run(t.Context(), "", nil, "probe", addr, "--service=none"), 1, `has no service "none"`)
	checkFailure(t, run(t.Context(), "", nil, "probe", "127.0.0.1:1", "--timeout=1s"), 1, "no answer from 127.0.0.1:1")
}
