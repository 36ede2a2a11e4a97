package commands_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func TestPolicy(t *testing.T) {
	router := &fakeRouter{}
	addr := router.start(t)
	policy := func(args ...string) outcome {
		return run(t.Context(), "", nil, append(append([]string{"policy"}, args...), "--control", addr)...)
	}
	want := "WHAT                 IN FORCE                           BY\n" +
		"tenant-max-requests  256                                configuration of the router\n" +
		"version              fable=0123456789ab/cpu/bf16/3:1  most of its workers\n"
	if got := policy(); got.status != 0 || len(got.stdout) == 0 || cmp.Diff(squeeze(want), squeeze(got.stdout)) != "" {
		t.Errorf("%+v, want\n%s", got, want)
	}
	got := policy("set", "--version=fable=01ab", "--version", "fable=fe/cpu/int8/3:9", "--tenant-max-requests=3", "--json")
	wantJSON := `{"policy":{"disaggregate_min_tokens":null,"tenant_max_requests":3,"routing":null,"versions":[` +
		`{"model":"fable","model_digest":"01ab","arithmetic_class":"","weight":1},{"model":"fable","model_digest":"fe","arithmetic_class":"cpu/int8/3","weight":9}]},` +
		`"in_force":{"disaggregate_min_tokens":null,"tenant_max_requests":3,"routing":null,"versions":[` +
		`{"model":"fable","model_digest":"01ab","arithmetic_class":"","weight":1},{"model":"fable","model_digest":"fe","arithmetic_class":"cpu/int8/3","weight":9}]}}` + "\n"
	if diff := cmp.Diff(wantJSON, got.stdout); diff != "" || got.status != 0 {
		t.Errorf("%+v (-want +got):\n%s", got, diff)
	}
	// What is not named stays; the versions of one model are replaced together.
	policy("set", "--version=other=0c")
	policy("set", "--version=fable=0d", "--disaggregate-min-tokens=0")
	set := &controlv1.Policy{TenantMaxRequests: proto.Uint32(3), DisaggregateMinTokens: proto.Uint32(0),
		Versions: []*controlv1.ModelVersion{{Model: "other", ModelDigest: "0c"}, {Model: "fable", ModelDigest: "0d"}}}
	if diff := cmp.Diff(set, router.policy, protocmp.Transform()); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	if got := policy("set", "--routing=least-loaded"); got.status != 0 || router.policy.GetRouting() != "least-loaded" || len(router.policy.GetVersions()) != 2 {
		t.Errorf("%+v, policy %v", got, router.policy)
	}
	router.meanwhile = &controlv1.Policy{TenantMaxRequests: proto.Uint32(5)} // what somebody else sets at once is not lost
	if got := policy("set", "--routing=aggregated"); got.status != 0 || router.policy.GetRouting() != "aggregated" || router.policy.GetTenantMaxRequests() != 5 {
		t.Errorf("%+v, policy %v", got, router.policy)
	}
	if got := policy("reset"); got.status != 0 || !proto.Equal(router.policy, &controlv1.Policy{}) {
		t.Errorf("%+v, policy %v", got, router.policy)
	}
	for _, test := range []struct {
		arg, says string
		status    int
	}{
		{"--version=fable", `"fable" names no model`, 2},
		{"--routing=least-load", `did you mean "least-loaded"?`, 2},
		{"--version==01", `"=01" names no model`, 2},
		{"--version=fable=", `names no digest`, 2},
		{"--version=fable=01:x", `"x" is not a weight`, 2},
		{"--version=fable=01:0", `"fable=01:0" has the weight 0`, 2},
		{"--version=fable=0x1", `"0x1" is not the beginning of a digest`, 2},
		{"--tenant-max-requests=x", `--tenant-max-requests: "x" is not a whole number`, 2},
		{"--tenant-max-requests=0", "--tenant-max-requests: 0 would refuse every request", 2},
		{"--tenant-max-requests=7", "policy.tenant_max_requests: 7 is none", 1},
	} {
		checkFailure(t, policy("set", test.arg), test.status, test.says)
	}
	checkFailure(t, policy("set"), 2, "nothing to set")
}

// squeeze makes one space of several.
func squeeze(text string) string {
	out := make([]rune, 0, len(text))
	for _, r := range text {
		if r != ' ' || len(out) == 0 || out[len(out)-1] != ' ' {
			out = append(out, r)
		}
	}
	return string(out)
}
