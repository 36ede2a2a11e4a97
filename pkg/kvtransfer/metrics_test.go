package kvtransfer_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Every outcome and transport is exported from the start, and counts.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, lending(t))
		registry := prometheus.NewRegistry()
		if err := g.receiver.RegisterMetrics(registry); err != nil {
			t.Fatal(err)
		}
		sent, err := kvtransfer.NewSentBytes(registry, "prefill-0")
		if err != nil {
			t.Fatal(err)
		}
		for _, commits := range []bool{true, false} {
			ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
			tr := g.open(ticket)
			if commits {
				sendAll(tr, kvcache.BlockRange(8, 4), 0, 4)
				tr.Commit(nil)
			} else {
				tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED)
			}
			wait(t, "the end", o.over)
			wait(t, "done", tr.Done())
			sent.Add(tr.Stats())
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP tandem_kvtransfer_received_bytes_total KV payload bytes that arrived in this receiver's pages.
# TYPE tandem_kvtransfer_received_bytes_total counter
tandem_kvtransfer_received_bytes_total{worker="decode-0"} 1200
# HELP tandem_kvtransfer_received_total KV transfers that ended at this receiver, by their end.
# TYPE tandem_kvtransfer_received_total counter
tandem_kvtransfer_received_total{end="aborted",worker="decode-0"} 1
tandem_kvtransfer_received_total{end="broken",worker="decode-0"} 0
tandem_kvtransfer_received_total{end="cancelled",worker="decode-0"} 0
tandem_kvtransfer_received_total{end="committed",worker="decode-0"} 1
tandem_kvtransfer_received_total{end="failed",worker="decode-0"} 0
# HELP tandem_kvtransfer_sent_bytes_total KV payload bytes sent to decode workers, by transport.
# TYPE tandem_kvtransfer_sent_bytes_total counter
tandem_kvtransfer_sent_bytes_total{transport="device",worker="prefill-0"} 1200
tandem_kvtransfer_sent_bytes_total{transport="shm",worker="prefill-0"} 0
tandem_kvtransfer_sent_bytes_total{transport="tcp",worker="prefill-0"} 0
tandem_kvtransfer_sent_bytes_total{transport="unix",worker="prefill-0"} 0
# HELP tandem_kvtransfer_stored_bytes_total KV payload bytes that the engine stored in decode workers' pages itself.
# TYPE tandem_kvtransfer_stored_bytes_total counter
tandem_kvtransfer_stored_bytes_total{worker="prefill-0"} 0
`)); err != nil {
			t.Error(err)
		}
	})
}
