package decode_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
	"github.com/tandem-serving/tandem/services/decode"
)

// A worker whose engine verifies no draft tokens says so, and does not begin without them.
func TestSpeculationNeedsAnEngine(t *testing.T) {
	for unknown, says := range map[bool]string{true: "speculate: ", false: ""} {
		profile := (latency.Model{BaseMs: 1}).Profile()
		if unknown {
			profile.Verify = nil // what draft tokens cost
		}
		e := newEngine(t, poolBlocks, simulated.Config{Profile: profile, Wait: func(context.Context, time.Duration) error { return nil }})
		_, err := decode.New(decode.Config{
			Limits: worker.Limits{ChunkTokens: 16, MaxWaiting: 1, OutputShare: 1}, TransferLease: time.Second, TransferIdle: time.Minute, ReserveShare: 1,
			TransferCreditBytes: 1 << 20, KVEncoding: "native", Speculation: worker.Speculation{Speculate: worker.SpeculateNgram, SpeculateTokens: 8},
		}, decode.Deps{
			Deps: workerdriver.Deps{
				Identity: membership.Identity{ID: "decode-1", Epoch: 1, Role: controlv1.Role_ROLE_DECODE, Addresses: []string{"a:1"}}, Engine: e,
				Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
			},
		})
		if (err != nil) != unknown || err != nil && !strings.HasPrefix(err.Error(), says) {
			t.Errorf("unknown cost %v: error %v", unknown, err)
		}
	}
}
