package integration_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/integration/faultstest"
)

// A sender that falls silent while its connection stays, in whatever phase: its
// reservation ends at its lease, and so does the session, on which there is nobody to
// acknowledge that. The request goes on elsewhere.
func TestSilentSenders(t *testing.T) {
	for _, network := range faultstest.Transports() {
		for _, p := range phases() {
			t.Run(network+", "+p.name, func(t *testing.T) {
				t.Parallel() // it is waiting
				g := newRig(t, network)
				want := generate(t, newRig(t, network).client, g.request(1, aggregated)).Tokens
				reached, release := p.hold(g)
				defer release()
				c := g.call(t.Context(), g.request(1, disaggregated))
				await(t, "the phase", reached)
				silent, decode := g.startPrefill(), g.startDecode()
				decode.proxy.Silence()
				fell := time.Now()
				// In the phases that the engines make, they go on.
				release()
				took := freeAfter(t, fell, decode.held)
				t.Logf("the receiver's blocks were free after %v, with a lease of %v", took.Round(time.Millisecond), rigLease)
				c.check(t, want, codes.OK)
				freeAfter(t, fell, g.held)
				decode.proxy.Speak()
				freeAfter(t, time.Now(), silent.held, decode.held)
			})
		}
	}
}
