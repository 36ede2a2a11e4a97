package replay_test

import "testing"

func TestZZBig(t *testing.T) { recordRequests(t, "/tmp/replaymem/big.events", 500_000) }
