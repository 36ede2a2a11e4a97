package evidence

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Machines of eight GPUs as Splitwise has them (P. Patel et al., ISCA '24, table I), with its
// prices of an hour.
var (
	a100 = machine{"A100", "", "a100-llama2-70b-tp8.json", "llama2-70b", "400GiB", 17.6}
	h100 = machine{"H100", "", "h100-llama2-70b-tp8.json", "llama2-70b", "400GiB", 38}
)

// splits of so much money an hour between machines that prefill and others that decode: a
// fifth, a third, half or two thirds for prefill.
func splits(dollars float64, prefill, decode machine, p placement) (all []layout) {
	last := 0
	for _, share := range []float64{0.2, 1.0 / 3, 0.5, 2.0 / 3} {
		n := max(int(math.Round(share*dollars/prefill.cost)), 1)
		rest := int((dollars - float64(n)*prefill.cost) / decode.cost)
		if n == last || rest < 1 {
			continue
		}
		last = n
		// Of auto, decode workers compute prompts too.
		all = append(all, layout{[]group{{"prefill", n, prefill}, {"decode", rest, decode}}, p == auto})
	}
	return all
}

// llama is Llama 2 70B in fp16 on machines of 640 GB, of which a tenth is left free. KV of its 80
// layers is sent in ten parts of eight layers each, which makes fewer events.
const llama = `model: {name: llama2-70b, layers: 10, hidden-size: 8192, heads: 64, kv-heads: 8, head-size: 1024, ffn-size: 28672, vocab-size: 32000, context-tokens: %d}
block-tokens: %d
network: {latency: 20us, bandwidth: 25GB/s}
router: {tenant-max-requests: 1000000%s}
pools:
`

// splitwiseScenario is the text of one.
func splitwiseScenario(o Options, l layout, mode placement, requests int, traffic string) string {
	var out strings.Builder
	fmt.Fprintf(&out, llama, 16384, 16, "")
	out.WriteString(l.pools(o))
	fmt.Fprintf(&out, "traffic:\n  rate: 1\n  mode: %s\n  duration: 1ms\n  min-requests: %d\n  warmup: 20s\n%s", mode, requests, traffic)
	return out.String()
}

// slowdowns are how many times longer requests take than on an empty machine of eight A100s.
type slowdowns struct{ ttft, tbt, e2e []float64 }

// slowdownsOf a run, by step times of such a machine.
func slowdownsOf(run *record.Run, empty *latency.Profile) (s slowdowns, all bool) {
	all = true
	for r := range run.Window() {
		if r.Outcome != record.Completed || len(r.Arrivals) == 0 {
			all = false
			continue
		}
		var prompt, token latency.StepWork
		prompt.Add(0, r.PromptTokens, true)
		token.Add(r.PromptTokens+r.OutputTokens/2, 1, true)
		first, step, others := empty.Predict(prompt), empty.Predict(token), time.Duration(r.OutputTokens-1)
		s.ttft = append(s.ttft, float64(r.First()-r.Due)/float64(first))
		s.e2e = append(s.e2e, float64(r.Last()-r.Due)/float64(first+others*step))
		if others > 0 {
			s.tbt = append(s.tbt, float64(r.Last()-r.First())/float64(others*step))
		}
	}
	return s, all && len(s.ttft) > 0 && len(s.tbt) > 0
}

// met: Splitwise's SLO, at p50, p90 and p99: 2, 3 and 6 for TTFT, 1.25, 1.5 and 5 for the time
// between tokens and the whole request.
func (s slowdowns) met() bool {
	within := func(values []float64, most [3]float64) bool {
		slices.Sort(values)
		for i, p := range []float64{0.5, 0.9, 0.99} {
			if stats.Quantile(values, p) > most[i] {
				return false
			}
		}
		return true
	}
	return within(s.ttft, [3]float64{2, 3, 6}) && within(s.tbt, [3]float64{1.25, 1.5, 5}) && within(s.e2e, [3]float64{1.25, 1.5, 5})
}

// read reads its step times.
func (m machine) read(o Options) (*latency.Profile, error) {
	return latency.ReadProfileFile(o.profile(m.profile))
}
