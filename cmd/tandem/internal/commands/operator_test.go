package commands_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Whoever gives the address that clients have is told of the other one.
func TestControlWhereClientsAre(t *testing.T) {
	router := &fakeRouter{clientsOnly: true}
	addr := router.start(t)
	for _, args := range [][]string{{"workers"}, {"workers", "--watch"}, {"drain", "d1"}, {"undrain", "d1"}, {"explain", "r1"}, {"budget"}} {
		got := run(t.Context(), "", nil, append(args, "--control", addr)...)
		checkFailure(t, got, 1, "the server at "+addr+" does not serve operators: pass --control")
		if !strings.Contains(got.stderr, "127.0.0.1:7090") {
			t.Errorf("%v does not name the usual address: %s", args, got.stderr)
		}
	}
}

// The authority to believe comes from the environment, and what a new key may do does not.
func TestEnvironmentOfKeys(t *testing.T) {
	for _, args := range [][]string{{"keys", "create", "--tenant", "acme"}, {"keys", "list"}, {"keys", "revoke", "0123456789ab"}} {
		got := run(t.Context(), "", []string{"TANDEM_CA=no-such-file", "TANDEM_EXPIRES=-1s"}, append(args, "--control", "127.0.0.1:1")...)
		if got.status == 0 || !strings.Contains(got.stderr, "no-such-file") {
			t.Errorf("%v does not read TANDEM_CA: %+v", args, got)
		}
	}
}

// An empty --etcd, as of a variable that is not set, does not mean a router.
func TestKeysWithoutAnAddressOfEtcd(t *testing.T) {
	router := &fakeRouter{}
	got := run(t.Context(), "", nil, "keys", "list", "--control", router.start(t), "--etcd", "")
	checkFailure(t, got, 2, "--etcd is empty: pass an address")
}

// The times of keys are in UTC, and say so.
func TestKeysListSaysUTC(t *testing.T) {
	at := func(hour int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2020, 1, 2, hour, 4, 5, 0, time.UTC))
	}
	router := &fakeRouter{keys: []*controlv1.ApiKey{
		{Id: "a", Tenant: "acme", Created: at(3), Expires: at(4)},
		{Id: "b", Tenant: "acme", Created: at(3), Revoked: at(5)},
		{Id: "c", Tenant: "acme", Created: at(3), Expires: timestamppb.New(time.Date(2999, 1, 2, 6, 4, 5, 0, time.UTC))},
	}}
	got := run(t.Context(), "", nil, "keys", "list", "--control", router.start(t))
	for _, want := range []string{"2020-01-02 03:04:05 UTC  expired 2020-01-02 04:04:05 UTC\n", "revoked 2020-01-02 05:04:05 UTC\n", "valid until 2999-01-02 06:04:05 UTC\n"} {
		if got.status != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q: %+v", want, got)
		}
	}
}

// Who made a request asks with its secret, and at the address of clients.
func TestExplainWithASecret(t *testing.T) {
	router := &fakeRouter{clientsOnly: true, explainOwn: func(r *controlv1.ExplainOwnRequest) (*controlv1.ExplainResponse, error) {
		if r.GetSecret() != "s1" {
			return nil, rpc.Errorf(codes.NotFound, "REQUEST_NOT_FOUND", "no request %q of this secret", r.GetRequestId())
		}
		return &controlv1.ExplainResponse{RequestId: r.GetRequestId(), Status: "OK", Arrived: timestamppb.New(time.Unix(0, 0))}, nil
	}}
	addr := router.start(t)
	for _, environ := range [][]string{nil, {"TANDEM_ADDR=" + addr}} {
		args := []string{"explain", "r1", "--secret", "s1"}
		if environ == nil {
			args = append(args, "--addr", addr)
		}
		if got := run(t.Context(), "", environ, args...); got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "request r1, arrived") {
			t.Errorf("%v: %+v", environ, got)
		}
	}
	checkFailure(t, run(t.Context(), "", nil, "explain", "r1", "--secret", "s2", "--addr", addr), 1, `no request "r1" of this secret`)
	checkFailure(t, run(t.Context(), "", nil, "explain", "r1", "--secret", "", "--addr", addr), 1, `no request "r1" of this secret`)
	checkFailure(t, run(t.Context(), "", nil, "explain", "--slowest", "p99", "--secret", "s1"), 2, "leave one of them out")
	checkFailure(t, run(t.Context(), "", nil, "explain", "r1", "--secret", "s1", "--control", addr), 2, "leave one of them out")
	checkFailure(t, run(t.Context(), "", nil, "explain", "r1", "--secret", "s1", "--addr", "http://x"), 2, "--addr: connect to \"http://x\": this is a URL")
	checkFailure(t, run(t.Context(), "", nil, "explain", "r1", "--addr", addr), 2, "--addr needs --secret too")
	got := run(t.Context(), "", nil, "explain", "r1", "--secret", "s1", "--addr", "127.0.0.1:1")
	checkFailure(t, got, 1, "cannot reach the router at 127.0.0.1:1: start it with 'tandem up', or pass --addr")
}

func TestUndrain(t *testing.T) {
	router := &fakeRouter{undrain: func(r *controlv1.UndrainRequest) error {
		if r.GetWorkerId() == "x" {
			return rpc.Errorf(codes.NotFound, "WORKER_NOT_FOUND", "there is no worker %q", r.GetWorkerId())
		}
		return nil
	}}
	addr := router.start(t)
	list := twoWorkers() // where d1 is draining and d2 serves
	for _, c := range []struct {
		worker  string
		workers []*controlv1.ListWorkersResponse
		want    string
	}{
		{"d1", nil, "d1 takes requests again\n"},
		{"d1", []*controlv1.ListWorkersResponse{list}, "d1 takes requests again\n"},
		{"d2", []*controlv1.ListWorkersResponse{list}, "d2 is not draining: it takes requests already\n"},
		{"d2", []*controlv1.ListWorkersResponse{{Workers: list.GetWorkers(), Old: true}}, "d2 takes requests again\n"}, // for all that is known
	} {
		router.workers = c.workers
		if got := run(t.Context(), "", nil, "undrain", c.worker, "--control", addr); got != (outcome{0, c.want, ""}) {
			t.Errorf("%s of %v: got %+v", c.worker, c.workers, got)
		}
	}
	if got := run(t.Context(), "", nil, "undrain", "d1", "--json", "--control", addr); got != (outcome{0, `{"worker":"d1","serving":true}` + "\n", ""}) {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "undrain", "x", "--control", addr), 1, `there is no worker "x"`)
	checkFailure(t, run(t.Context(), "", nil, "undrain"), 2, "needs the ID of a worker")
}
