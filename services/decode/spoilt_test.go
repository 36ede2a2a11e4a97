package decode_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// spoil makes a layer of the blocks no numbers, where the sender has them.
func (s *sender) spoil(layer int, blocks []kvcache.BlockID) {
	s.t.Helper()
	for _, block := range blocks {
		if err := s.engine.Pages().Write(layer, []kvcache.BlockID{block}, bytes.Repeat([]byte{0xff}, s.engine.Pages().Layout().SliceBytes)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// shipSpoilt is ship of KV that is no number in a layer.
func (s *sender) shipSpoilt(ticket *kvtransferv1.Ticket, tokens []uint32, layer int) {
	s.t.Helper()
	h := s.open(ticket, tokens)
	s.spoil(layer, h.blocks[h.held:])
	h.sendLayers(layers)
	h.Commit([]int32{h.first})
}

// KV that came with good checksums and is not finite gives no token: the answer ends with
// a status that names the sender and the layer, those that run beside it are as they would
// be alone, and nothing of it is left in the cache or the pages. However often that
// happens, the worker stays.
func TestKVThatIsNotFinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		bad := g.newSender("prefill-bad")
		beside := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(30, 1), 40)})
		g.sender.ship(beside.ticket(), prompt(30, 1))
		for i := range 3 {
			tokens := prompt(25, 20+i)
			a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 9)})
			bad.shipSpoilt(a.ticket(), tokens, 1)
			a.rest()
			wantError(t, "spoilt KV", a.err, codes.DataLoss, api.ReasonKVNotFinite)
			if len(a.tokens) > 0 || !strings.Contains(a.err.Error(), "prefill-bad") || !strings.Contains(a.err.Error(), "layer 1") {
				t.Errorf("tokens %v, then %v", a.tokens, a.err)
			}
			// The same prompt again, whole: what was spoilt is not found.
			g.generate(&workerv1.DecodeRequest{Task: task(tokens, 6)}).checkTokens("the next one", tokens, 1, 6, length)
		}
		beside.rest().checkTokens("the one beside", prompt(30, 1), 1, 40, length)
		if g.service.Driver().Draining() {
			t.Error("the worker leaves for what others did")
		}
		g.idle()
		for block := range kvcache.BlockID(poolBlocks) {
			for layer := range layers {
				if n := g.engine.NotFinite(g.engine.Pages().View(layer, block), blockTokens); n < blockTokens {
					t.Errorf("block %d is as it came, in layer %d", block, layer)
				}
			}
		}
		list, err := g.worker.ListBlocks(t.Context(), &workerv1.ListBlocksRequest{})
		if err != nil {
			t.Fatal(err)
		}
		checkBlocks(t, list, g.signals)
		g.works(9)
	})
}

// Two that share a prefix which is not finite both fail, and nobody else.
func TestSharedKVThatIsNotFinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		tokens := prompt(25, 3)
		first := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 40)})
		g.sender.ship(first.ticket(), tokens)
		longer := slices.Concat(tokens, prompt(10, 4))
		for first.admitted == nil {
			first.next()
		}
		second := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(longer, 40), PrefillHere: true})
		for len(second.tokens) == 0 {
			second.next()
		}
		if second.admitted.GetCachedTokens() == 0 {
			t.Fatal("they share nothing")
		}
		// The memory fails under what they share, between two steps.
		release := make(chan struct{})
		g.layers.Hold(func(ctx context.Context, _ time.Duration) error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		time.Sleep(10 * stepTime)
		synctest.Wait()
		for block := range kvcache.BlockID(poolBlocks) {
			if slice := g.engine.Pages().View(0, block); !bytes.Equal(slice, make([]byte, len(slice))) {
				copy(slice, bytes.Repeat([]byte{0xff}, len(slice)))
				break
			}
		}
		g.layers.Hold(nil)
		close(release)
		for _, a := range []*answer{first, second} {
			if a.rest(); a.err == nil {
				t.Errorf("tokens %v of KV that is not finite", a.tokens)
			}
			wantError(t, "spoilt KV", a.err, codes.DataLoss, api.ReasonKVNotFinite)
		}
		g.works(5)
	})
}
