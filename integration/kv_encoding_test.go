package integration_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/cluster"
)

// KV in int8 is half the bytes, is not found again by the next request on the decode
// worker, and such a request says that it is not reproducible. One that nothing was
// sent for is as ever.
func TestKVInInt8(t *testing.T) {
	native := cluster.Start(t, nil)
	encoded := cluster.Start(t, func(o *mesh.UpOptions) { o.Decode.KVEncoding = "int8" })
	ask := request(longPrompt(3), 40, 0, disaggregated)
	exact, again := generate(t, native.Client, ask), generate(t, native.Client, ask)
	first, second := generate(t, encoded.Client, ask), generate(t, encoded.Client, ask)

	full := exact.Finished.GetTimings().GetTransferBytes()
	if held := again.Finished.GetTimings().GetTransferBytes(); held >= full {
		t.Fatalf("native KV was sent twice: %d bytes, then %d", full, held)
	}
	for _, r := range []cluster.Result{first, second} {
		if sent := r.Finished.GetTimings().GetTransferBytes(); sent <= full/2 || sent > full*11/20 {
			t.Errorf("%d bytes were sent, %d of native KV", sent, full)
		}
		if route := r.Finished.GetRoute(); route.GetReproducible() || route.GetMode() != disaggregated {
			t.Errorf("route %v", route)
		}
		if len(r.Tokens) == 0 || r.Tokens[0] != exact.Tokens[0] {
			t.Errorf("tokens %v, exact %v: the first was drawn before any KV was sent", r.Tokens, exact.Tokens)
		}
	}
	checkRoute(t, exact, disaggregated)
	checkRoute(t, generate(t, encoded.Client, request(longPrompt(3), 40, 0, aggregated)), aggregated)
	encoded.AwaitIdle(t, 10*time.Second)
}
