package integration_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

// KV in int8 is half the bytes, is not found again by the next request on the decode
// worker, and such a request says that it is not reproducible. One that nothing was
// sent for is as ever.
func TestKVInInt8(t *testing.T) {
	native := clustertest.Start(t, nil)
	encoded := clustertest.Start(t, func(o *mesh.UpOptions) { o.Decode.KVEncoding = "int8" })
	ask := request(longPrompt(3), 40, 0, disaggregated)
	exact, again := generate(t, native.Client, ask), generate(t, native.Client, ask)
	first, second := generate(t, encoded.Client, ask), generate(t, encoded.Client, ask)

	full := exact.Finished.GetTimings().GetTransferBytes()
	if held := again.Finished.GetTimings().GetTransferBytes(); held >= full {
		t.Fatalf("native KV was sent twice: %d bytes, then %d", full, held)
	}
	for _, r := range []clustertest.Result{first, second} {
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
	encoded.AwaitIdle(t)
}

// Engines that keep KV in int8 send about half the bytes too, and what is sent is what
// was computed: tokens are the same on one worker and on two, in one chunk and in many,
// with a prefix hit and without, and requests say so.
func TestEnginesWithKVInInt8(t *testing.T) {
	exact := clustertest.Start(t, nil)
	whole := clustertest.Start(t, func(o *mesh.UpOptions) { o.Engine.CPU.KV = cpu.KVInt8 })
	chunked := clustertest.Start(t, func(o *mesh.UpOptions) {
		smallChunks(o)
		o.Engine.CPU.KV = cpu.KVInt8
	})
	prompt := longPrompt(4)
	alone := clustertest.Start(t, func(o *mesh.UpOptions) { o.Engine.CPU.KV = cpu.KVInt8 })
	want := generate(t, alone.Client, request(prompt, 40, 0.8, aggregated)).Tokens
	full := generate(t, exact.Client, request(prompt, 40, 0.8, disaggregated)).Finished.GetTimings().GetTransferBytes()
	for i, m := range []*clustertest.Client{whole.Client, chunked.Client} {
		most := full * 11 / 20
		for _, again := range []string{"first", "after the same prefix"} {
			r := generate(t, m, request(prompt, 40, 0.8, disaggregated))
			if !slices.Equal(r.Tokens, want) {
				t.Errorf("mesh %d, %s: %v, want %v", i, again, r.Tokens, want)
			}
			checkRoute(t, r, disaggregated)
			sent := r.Finished.GetTimings().GetTransferBytes()
			if sent > most || again == "first" && sent <= full/2 {
				t.Errorf("mesh %d, %s: %d bytes were sent, %d in bf16", i, again, sent, full)
			}
			if i == 0 { // it has one decode worker, where the prefix is now
				most = sent - 1
			}
		}
		m.AwaitIdle(t)
	}
}
