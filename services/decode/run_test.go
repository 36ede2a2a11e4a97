package decode_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

func TestTokensAfterATransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for seed, n := range []int{1, 3, 4, 5, 37, 64, 100} {
			tokens := prompt(n, seed)
			a := g.generate(&workerv1.DecodeRequest{Task: task(tokens, 12)})
			a.checkTokens("prompt", tokens, 1, 12, length)
			if int(a.reserved.GetTicket().GetBlocks()) != blocksOf(n) || a.reserved.GetTicket().GetHeldBlocks() != 0 || a.reserved.GetCachedTokens() != 0 {
				t.Errorf("prompt of %d: reserved %v", n, a.reserved)
			}
			if a.ended.GetPrefillComputeNs() != 0 || time.Duration(a.ended.GetDecodeComputeNs()) != 11*stepTime {
				t.Errorf("prompt of %d: %v", n, a.ended)
			}
			g.idle()
		}
	})
}

func TestPrefillHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for seed, n := range []int{1, 4, 37, 100} {
			tokens := prompt(n, seed)
			a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12), PrefillHere: true}).rest()
			a.checkTokens("prompt", tokens, 0, 12, length)
			steps := time.Duration((n + 15) / 16)
			if a.reserved != nil || time.Duration(a.ended.GetPrefillComputeNs()) != steps*stepTime || time.Duration(a.ended.GetDecodeComputeNs()) != 11*stepTime {
				t.Errorf("prompt of %d: reserved %v, %v", n, a.reserved, a.ended)
			}
			g.idle()
		}
		tokens := prompt(37, 2)
		a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 3), PrefillHere: true}).rest()
		a.checkTokens("prompt in the cache", tokens, 0, 3, length)
		if a.admitted.GetCachedTokens() != 36 {
			t.Errorf("%d tokens were cached", a.admitted.GetCachedTokens())
		}
	})
}

func TestBlocksThatAreHeldNeedNotCome(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, then int
		held        uint32
	}{
		{"same prompt", 37, 37, 9},
		{"a longer one", 20, 37, 5},
		{"a shorter one", 37, 22, 5},
		{"all of it: nothing is sent", 40, 40, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				long := prompt(40, 1)
				g.generate(&workerv1.DecodeRequest{Task: task(long[:c.first], 2)}).checkTokens("first", long[:c.first], 1, 2, length)
				a := g.generate(&workerv1.DecodeRequest{Task: task(long[:c.then], 8)})
				a.checkTokens("second", long[:c.then], 1, 8, length)
				if held := a.reserved.GetTicket().GetHeldBlocks(); held != c.held || a.reserved.GetCachedTokens() != held*blockTokens || a.admitted.GetCachedTokens() != held*blockTokens {
					t.Errorf("reserved %v, admitted %v; want %d blocks held", a.reserved, a.admitted, c.held)
				}
				g.idle()
			})
		})
	}
}

func TestEnds(t *testing.T) {
	tokens := prompt(30, 3)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, task *workerv1.Task)
		end    int
		stops  bool
	}{
		{"max_tokens", func(_ *testing.T, k *workerv1.Task) { k.MaxTokens = 4 }, 4, false},
		{"stop token", func(t *testing.T, k *workerv1.Task) { k.StopTokenIds = []uint32{reference(t, tokens, 5)[4]} }, 5, true},
		{"the first token was the last", func(_ *testing.T, k *workerv1.Task) { k.MaxTokens = 1 }, 1, false},
		{"the first token was a stop", func(t *testing.T, k *workerv1.Task) { k.StopTokenIds = []uint32{reference(t, tokens, 1)[0]} }, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				request := &workerv1.DecodeRequest{Task: task(tokens, 20)}
				c.change(t, request.GetTask())
				reason := length
				if c.stops {
					reason = stop
				}
				g.generate(request).checkTokens("request", tokens, 1, c.end, reason)
				g.idle()
			})
		})
	}
}

func TestRestartedRequestGoesOnAtItsOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		tokens := prompt(30, 3)
		whole := reference(t, tokens, 12)
		again := task(append(slices.Clone(tokens), whole[:5]...), 12)
		again.Generated = 5
		a := g.generate(&workerv1.DecodeRequest{Task: again})
		if a.err != nil || a.offset != 6 || !slices.Equal(a.tokens, whole[6:]) {
			t.Errorf("tokens %v from %d, error %v; want %v from 6", a.tokens, a.offset, a.err, whole[6:])
		}
		g.idle()
	})
}

func TestSeveralTokensWereSampledElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		tokens := prompt(30, 3)
		whole := reference(t, tokens, 12)
		a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12)})
		h := g.sender.open(a.ticket(), tokens)
		h.sendLayers(layers)
		h.Commit([]int32{int32(whole[0]), int32(whole[1]), int32(whole[2])})
		if a.rest(); a.err != nil || a.offset != 3 || !slices.Equal(a.tokens, whole[3:]) {
			t.Errorf("tokens %v from %d, error %v; want %v from 3", a.tokens, a.offset, a.err, whole[3:])
		}
		g.idle()
	})
}

// TestFinishedAtPrefill is repeated, since two events race to the handler: the
// end of the transfer and that of the sequence.
func TestFinishedAtPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for seed := range 60 {
			tokens := prompt(30, seed)
			a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 1)})
			h := g.sender.open(a.ticket(), tokens)
			h.sendLayers(seed % (layers + 1))
			h.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
			wantError(t, "request", a.rest().err, codes.Canceled, api.ReasonFinishedAtPrefill)
			g.idle()
		}
		g.works(100)
	})
}

func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		var all sync.WaitGroup
		for i := range maxWaiting {
			tokens := prompt(10+5*i, 10+i)
			all.Go(func() {
				request := &workerv1.DecodeRequest{Task: task(tokens, 10), PrefillHere: i%2 == 0}
				if request.GetPrefillHere() {
					g.call(context.Background(), request).rest().checkTokens("prefilled here", tokens, 0, 10, length)
				} else {
					g.generate(request).checkTokens("after a transfer", tokens, 1, 10, length)
				}
			})
		}
		all.Wait()
		g.idle()
	})
}

func TestListBlocksIsWhatTheEventsAddUpTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for seed := range 8 { // more than the pool holds, so that blocks are removed too
			g.generate(&workerv1.DecodeRequest{Task: task(prompt(41, 20+seed), 12)})
			g.idle()
			list, err := g.worker.ListBlocks(t.Context(), &workerv1.ListBlocksRequest{})
			if err != nil {
				t.Fatal(err)
			}
			checkBlocks(t, list, g.signals)
		}
	})
}
