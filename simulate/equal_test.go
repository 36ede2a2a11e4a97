package simulate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/simulate"
)

// Equal prompts that nobody holds, and that come almost at once, are drawn to where the first is
// computed: all of them together compute the prompt twice at most.
func TestEqualPromptsAreComputedTwiceAtMost(t *testing.T) {
	const requests, blocks = 64, 64
	const tokens = blocks*32 + 1
	for _, test := range []struct{ prefill, decode int }{{4, 4}, {7, 1}, {0, 8}} {
		for _, routers := range []int{1, 2} {
			for _, ttft := range []time.Duration{0, time.Second} {
				t.Run(fmt.Sprintf("%d+%d/routers=%d/ttft=%v", test.prefill, test.decode, routers, ttft), func(t *testing.T) {
					c := config(test.prefill, test.decode)
					c.TTFT, c.Routers = ttft, routers
					cluster, err := simulate.New(c)
					if err != nil {
						t.Fatal(err)
					}
					ids := make([]uint32, tokens)
					for i := range ids {
						ids[i] = uint32(i%1000 + 3)
					}
					var source workload.List
					for i := range requests {
						source = append(source, &workload.Request{
							Due: time.Duration(i) * 10 * time.Millisecond / requests, Prompt: workload.Prompt{TokenIDs: ids}, MaxTokens: 4, Exact: true, Tenant: "t",
						})
					}
					got, err := cluster.Run(simulate.Load{Source: &source, RequestTimeout: time.Minute, DrainTimeout: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					computed, slowest := 0, time.Duration(0)
					for _, r := range got.Records {
						if r.Outcome != record.Completed {
							t.Fatalf("%v: %s", r.Outcome, r.Error)
						}
						computed += tokens - r.CachedTokens
						slowest = max(slowest, r.First()-r.Due)
					}
					t.Logf("%d tokens are computed, %.2f times the prompt; the last first token came after %v", computed, float64(computed)/tokens, slowest)
					// Each computes the token that follows the blocks.
					if most := 2*routers*blocks*32 + requests; computed > most {
						t.Errorf("%d tokens are computed, %d at most", computed, most)
					}
				})
			}
		}
	}
}
