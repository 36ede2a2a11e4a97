package commands_test

import "testing"

// Without an etcd it says that there is none, and nothing of rights.
func TestEtcdAuthWithoutEtcd(t *testing.T) {
	t.Parallel() // much of it is waiting
	checkFailure(t, run(t.Context(), "", nil, "etcd-auth", "--etcd=http://127.0.0.1:1"), 1, "tandem: cannot reach etcd at http://127.0.0.1:1: check --etcd")
}
