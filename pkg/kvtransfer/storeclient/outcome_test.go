package storeclient_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// A store that says something of these blocks is well; one that asks for a pause
// gets it, no longer the second time than the first.
func TestWhatStoresSayOfThemselves(t *testing.T) {
	busy := func(reason string, after time.Duration) error {
		return &storeclient.BusyError{RetryAfter: after, Err: rpc.Error(codes.ResourceExhausted, reason, "no", after)}
	}
	for _, c := range []struct {
		name          string
		err           error
		fetches, puts time.Duration
	}{
		{"it has them", storeclient.ErrHeld, 0, 0},
		{"others put them", storeclient.ErrArriving, 0, 0},
		{"it is full", busy(api.ReasonStoreFull, time.Second), 0, 0},
		{"they never fit", busy(api.ReasonStoreFull, 0), 0, 0},
		{"it lost them", &storeclient.MissingError{}, 0, 0},
		{"this worker is slow to look through them", &storeclient.CheckError{Err: context.DeadlineExceeded}, 0, 0},
		{"this worker cannot read them", &storeclient.CheckError{Err: errors.New("closed")}, 0, 0},
		{"too many calls", busy(api.ReasonStoreBusy, 50*time.Millisecond), 50 * time.Millisecond, 50 * time.Millisecond},
		{"it leaves", busy(api.ReasonWorkerDraining, 3*time.Second), 3 * time.Second, 3 * time.Second},
		{"it does not say when", busy(api.ReasonWorkerDraining, 0), time.Second, time.Second},
		{"another incarnation", storeclient.ErrRestarted, 0, time.Second},
		{"another model", &storeclient.LayoutError{}, 0, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			for what, got := range map[string]struct {
				outcome offload.Outcome
				want    time.Duration
			}{"fetches": {storeclient.FetchOutcome(c.err), c.fetches}, "puts": {storeclient.PutOutcome(c.err), c.puts}} {
				if got.outcome.Pause != got.want || (got.outcome.State == offload.Healthy) != (got.want == 0) || got.outcome.State == offload.Failing {
					t.Errorf("%s: %+v, want a pause of %v", what, got.outcome, got.want)
				}
			}
		})
	}
}

// A store that gives what is not finite has failed: it does so again.
func TestFetchOfWhatIsNotFinite(t *testing.T) {
	if got := storeclient.FetchOutcome(storeclient.ErrNotFinite); got.State != offload.Failing || got.Result != offload.FetchNotFinite {
		t.Errorf("%+v", got)
	}
}

// A put of what another worker is putting is tried again when the store says, or a second later,
// and says nothing against the store.
func TestPutOfWhatArrives(t *testing.T) {
	for _, c := range []struct {
		name  string
		store error
		again time.Duration
	}{
		{"Tandem's store", storeclient.OfferStatus(blockstore.Arriving, 1, 1), time.Second},
		{"one that says when", rpc.Error(codes.Aborted, api.ReasonBlocksArriving, "they come", 3*time.Second), 3 * time.Second},
		{"one that does not", rpc.Error(codes.Aborted, api.ReasonBlocksArriving, "they come", 0), time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := storeclient.PutOutcome(storeclient.CallError(c.store))
			if got.Result != offload.PutArriving || got.State != offload.Healthy || got.Again != c.again || got.Err == nil {
				t.Errorf("%+v", got)
			}
		})
	}
}
