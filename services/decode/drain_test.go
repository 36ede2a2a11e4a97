package decode_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

func TestDrainFinishesWhatRunsAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		tokens := prompt(37, 1)
		a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12)})
		ticket := a.ticket() // its KV comes during the drain

		wrong, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Epoch: workerEpoch + 1})
		if err == nil {
			_, err = wrong.Recv()
		}
		wantError(t, "drain of another start", err, codes.FailedPrecondition, api.ReasonWrongEpoch)

		drain, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Epoch: workerEpoch})
		if err != nil {
			t.Fatal(err)
		}
		progress, err := drain.Recv()
		if err != nil || progress.GetSequences() != 1 || progress.GetTransfers() != 1 || progress.GetBlocksHeld() != uint32(blocksOf(37+1)) {
			t.Errorf("progress %v, error %v", progress, err)
		}
		for _, here := range []bool{false, true} {
			late := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(4, 1), 5), PrefillHere: here})
			wantError(t, "request during the drain", late.rest().err, codes.Unavailable, api.ReasonWorkerDraining)
		}
		g.sender.ship(ticket, tokens)
		a.rest().checkTokens("the running request", tokens, 1, 12, length)
		var last *workerv1.DrainProgress
		for {
			progress, err := drain.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			last = progress
		}
		if last.GetSequences() != 0 || last.GetTransfers() != 0 || last.GetBlocksHeld() != 0 {
			t.Errorf("drained with %v left", last)
		}
		g.idle()
	})
}

func TestDrainWithGraceCuts(t *testing.T) {
	for _, phase := range []string{"reserved", "half of the KV came", "running"} {
		t.Run(phase, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				tokens := prompt(30, 1)
				a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 100)})
				ticket := a.ticket()
				grace := 500 * time.Millisecond // a token takes 12 ms
				switch phase {
				case "half of the KV came":
					g.sender.open(ticket, tokens).sendLayers(1)
				case "running":
					g.sender.ship(ticket, tokens)
				}
				synctest.Wait()
				began := time.Now()
				if _, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Grace: durationpb.New(grace)}); err != nil {
					t.Fatal(err)
				}
				wantError(t, "request", a.rest().err, codes.Unavailable, api.ReasonWorkerDraining)
				if took := time.Since(began); took != grace {
					t.Errorf("cut after %v", took)
				}
				g.idle()
			})
		})
	}
}

// TestStopWhileServing: whatever there is ends, and so does Run.
func TestStopWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		tokens := prompt(30, 1)
		running := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 100)})
		g.sender.ship(running.ticket(), tokens)
		halfway := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(20, 2), 5)})
		g.sender.open(halfway.ticket(), prompt(20, 2)).sendLayers(2)
		g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(10, 3), 5)}).ticket()
		time.Sleep(30 * time.Millisecond)
	})
}
