package rpc_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

func TestSuffixed(t *testing.T) {
	long := strings.Repeat("x", 128)
	for _, c := range []struct{ id, want string }{
		{"a", "a/12"}, {long[:125], long[:125] + "/12"}, {long[:126], long[:125] + "/12"}, {long[:127], long[:125] + "/12"}, {long, long[:125] + "/12"},
	} {
		if got := rpc.Suffixed(c.id, "/12"); got != c.want || !rpc.ValidRequestID(got) {
			t.Errorf("%d bytes: %q, want %q", len(c.id), got, c.want)
		}
	}
}
