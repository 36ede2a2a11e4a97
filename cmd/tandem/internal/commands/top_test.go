package commands_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// busyMesh is twoWorkers, a busier one, and the queues of two routers.
func busyMesh() *controlv1.ListWorkersResponse {
	list := twoWorkers()
	list.Workers = append(list.Workers, &controlv1.WorkerView{
		Record: &controlv1.WorkerRecord{Id: "d3", Role: controlv1.Role_ROLE_DECODE, State: controlv1.WorkerState_WORKER_STATE_SERVING, Model: "fable"},
		Load: &controlv1.LoadReport{
			RunningSequences: 8, RunningContextTokens: 1000, WaitingSequences: 3, WaitingTokens: 900, BlocksFree: 30, BlocksTotal: 120,
			StepTime: &controlv1.StepTimeModel{BaseMs: 2, PerTokenMs: .25, PerContextTokenMs: .001, Samples: 9},
		},
		LoadAge: durationpb.New(time.Second), Connected: true, Registered: true, InFlight: 8,
	})
	list.Pools = []*controlv1.PoolSize{{Pool: controlv1.Role_ROLE_DECODE, Model: "fable", Workers: 2, Desired: 4}}
	list.Queues = []*controlv1.QueueReport{
		{Origin: &controlv1.Origin{Id: "r1"}, Model: "fable", Demand: &controlv1.Demand{RequestsPerSecond: 9.876, ContextTokens: 200, OutputTokens: 60}, Queues: []*controlv1.QueueDepth{
			{Pool: controlv1.Role_ROLE_PREFILL, Class: "standard", Requests: 5, Tokens: 700, OldestWaitMs: 1234},
			{Pool: controlv1.Role_ROLE_DECODE, Priority: -1, Requests: 1, Tokens: 10, OldestWaitMs: 50},
		}},
		{Origin: &controlv1.Origin{Id: "r2"}, Model: "fable"},
	}
	return list
}

const busyView = `POOL     MODEL  SERVING  WANTS  RUNNING  WAITING  WAITING TOKENS  BLOCKS USED
prefill  fable  1/1      -      1        2        300             66/70 (94%)
decode   fable  1/3      4      8        3        900             90/120 (75%)

ROUTER  MODEL  REQUESTS/S  PROMPT+ANSWER  QUEUE    PRIORITY  CLASS     WAITING  WAITING TOKENS  OLDEST
r1      fable  9.88        200+60         prefill  0         standard  5        700             1.2s
                                          decode   -1        -         1        10              100ms
r2      fable  0.00        0+0            -        -         -         0        0               -

ID  ROLE     STATE                    RUNNING  WAITING  WAITING TOKENS  BLOCKS USED   STEP MS  IN FLIGHT  AGE
d3  decode   serving                  8        3        900             90/120 (75%)  5.00     8          1s
p1  prefill  serving                  1        2        300             66/70 (94%)   -        3          300ms
d1  decode   draining, no connection  -        -        -               -             -        0          -
d2  decode   serving, excluded        -        -        -               -             -        0          -
`

func TestTop(t *testing.T) {
	router := &fakeRouter{workers: []*controlv1.ListWorkersResponse{busyMesh()}}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "top", "--once", "--control", addr)
	if diff := cmp.Diff(busyView, got.stdout); diff != "" || got.status != 0 || got.stderr != "" {
		t.Errorf("status %d, %s, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
	got = run(t.Context(), "", nil, "top", "--once", "--json", "--control", addr)
	var view struct {
		Pools []struct {
			Pool             string
			Workers, Serving int
			Desired          *int
			BlocksUsed       int `json:"blocks_used"`
		}
		Routers []struct {
			Router string
			Queue  []struct {
				Pool, Class  string
				Requests     int
				OldestWaitMs int `json:"oldest_wait_ms"`
			}
		}
		Workers []struct {
			ID     string
			StepMs *float64 `json:"step_ms"`
			Load   struct{ Running int }
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &view); err != nil || strings.Count(got.stdout, "\n") != 1 {
		t.Fatalf("%v in %+v", err, got)
	}
	if p := view.Pools; len(p) != 2 || p[0].Desired != nil || *p[1].Desired != 4 || p[1].Workers != 3 || p[1].Serving != 1 || p[1].BlocksUsed != 90 {
		t.Errorf("pools %+v", p)
	}
	if r := view.Routers; len(r) != 2 || r[0].Queue[0].Requests != 5 || r[0].Queue[0].Class != "standard" || r[0].Queue[0].OldestWaitMs != 1234 || r[1].Queue == nil {
		t.Errorf("routers %+v", r)
	}
	if w := view.Workers; len(w) != 4 || w[0].ID != "d3" || *w[0].StepMs != 5 || w[0].Load.Running != 8 || w[1].StepMs != nil {
		t.Errorf("workers %+v", w)
	}
	router.workers[0] = &controlv1.ListWorkersResponse{Old: true}
	if got := run(t.Context(), "", nil, "top", "--once", "--control", addr).stdout; !strings.HasPrefix(got, "etcd does not answer the router") || !strings.Contains(got, "no workers: start some") {
		t.Errorf("of an old and empty list: %s", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "top", "--every=1ms"), 2, "--every: 1ms is under 100ms: see 'tandem top --help'")
	checkFailure(t, run(t.Context(), "", nil, "top", "--control=127.0.0.1:1"), 1, "cannot reach a router at 127.0.0.1:1")
	router.workers = nil
	checkFailure(t, run(t.Context(), "", nil, "top", "--control", addr), 1, "there is no list")
}

// TestTopFitsATerminal: the busiest workers, how many there are besides, and which columns lack.
func TestTopFitsATerminal(t *testing.T) {
	list := busyMesh()
	for range 40 {
		list.Workers = append(list.Workers, list.GetWorkers()[0])
	}
	text := commands.Top(list, 80, 24)
	for line := range strings.Lines(text) {
		if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > 80 {
			t.Errorf("%d columns: %s", columns, line)
		}
	}
	if lines := strings.Count(text, "\n"); lines > 23 || !strings.Contains(text, "d3  decode") || !strings.HasSuffix(text, " more workers, less busy; --once shows all\n") {
		t.Errorf("%d lines:\n%s", lines, text)
	}
	if text := commands.Top(list, 120, 3); !strings.Contains(text, "d3  decode") || !strings.Contains(text, "and 43 more workers") {
		t.Errorf("of a tiny terminal:\n%s", text)
	}
}

// views are what a command writes; the second one ends it.
type views struct {
	seen []string
	end  func()
}

func (v *views) Write(text []byte) (int, error) {
	if v.seen = append(v.seen, string(text)); strings.Count(strings.Join(v.seen, ""), "POOL ") == 2 {
		v.end()
	}
	return len(text), nil
}

// Elsewhere than on a terminal views come one after the other; Ctrl-C ends them well.
func TestTopGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &views{end: cancel}
	addr := (&fakeRouter{workers: []*controlv1.ListWorkersResponse{busyMesh()}}).start(t)
	if status := runTo(ctx, out, "top", "--every=100ms", "--control", addr); status != 0 {
		t.Errorf("status %d", status)
	}
	if got := strings.Join(out.seen, ""); got != busyView+"\n"+busyView {
		t.Errorf("it prints %s", got)
	}
}
