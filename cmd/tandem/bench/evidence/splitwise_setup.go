package evidence

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// device is a machine of eight GPUs as Splitwise has them (P. Patel et al., ISCA '24, table I).
type device struct {
	name    string
	profile string // in Options.Profiles
	dollars float64
}

var (
	a100 = device{"A100", "a100-llama2-70b-tp8.json", 17.6}
	h100 = device{"H100", "h100-llama2-70b-tp8.json", 38}
)

// machines are those of one kind that do one thing.
type machines struct {
	role  string
	count int
	device
}

// park is a cluster: decode workers alone do both phases. whole is as of a layout.
type park struct {
	machines []machines
	whole    bool
}

func (p park) dollars() (d float64) {
	for _, m := range p.machines {
		d += float64(m.count) * m.device.dollars
	}
	return d
}

// String is such as "3 H100 prefill + 11 A100 decode".
func (p park) String() string {
	var parts []string
	for _, m := range p.machines {
		role := m.role
		if len(p.machines) == 1 {
			role = "both"
		}
		parts = append(parts, fmt.Sprintf("%d %s %s", m.count, m.device.name, role))
	}
	text := strings.Join(parts, " + ")
	if p.whole {
		text += ", whole prompts"
	}
	return text
}

// splits of so much money an hour between machines that prefill and others that decode: a
// fifth, a third, half or two thirds for prefill.
func splits(dollars float64, prefill, decode device, p placement) (all []park) {
	last := 0
	for _, share := range []float64{0.2, 1.0 / 3, 0.5, 2.0 / 3} {
		n := max(int(math.Round(share*dollars/prefill.dollars)), 1)
		rest := int((dollars - float64(n)*prefill.dollars) / decode.dollars)
		if n == last || rest < 1 {
			continue
		}
		last = n
		// Of auto, decode workers compute prompts too.
		all = append(all, park{[]machines{{"prefill", n, prefill}, {"decode", rest, decode}}, p == auto})
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

// scenario is the text of one.
func (p park) scenario(o Options, mode placement, requests int, traffic string) string {
	var out strings.Builder
	fmt.Fprintf(&out, llama, 16384, 16, "")
	for _, m := range p.machines {
		fmt.Fprintf(&out, "  %s: {role: %s, count: %d, profile: {file: %q, model: llama2-70b}, kv-memory: 400GiB, max-sequences: 512, max-batch-tokens: 4096",
			m.role, m.role, m.count, o.profile(m.profile))
		if m.role == "prefill" || p.whole {
			out.WriteString(", chunk-tokens: 2048")
		}
		if p.whole {
			out.WriteString(", step-budget: 0s")
		}
		out.WriteString("}\n")
	}
	fmt.Fprintf(&out, "traffic:\n  rate: 1\n  mode: %s\n  duration: 1ms\n  min-requests: %d\n  warmup: 20s\n%s", mode, requests, traffic)
	return out.String()
}

// slowdowns are how many times longer requests take than on an empty machine of eight A100s.
type slowdowns struct{ ttft, tbt, e2e []float64 }

// slowdownsOf a run, by step times of such a machine.
func slowdownsOf(run *record.Run, empty *latency.Profile) (s slowdowns, all bool) {
	all = true
	for _, r := range run.Records {
		if r.Due < run.From || r.Due >= run.To {
			continue
		}
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
			if values[int(math.Ceil(p*float64(len(values))))-1] > most[i] {
				return false
			}
		}
		return true
	}
	return within(s.ttft, [3]float64{2, 3, 6}) && within(s.tbt, [3]float64{1.25, 1.5, 5}) && within(s.e2e, [3]float64{1.25, 1.5, 5})
}

func (d device) read(o Options) (*latency.Profile, error) {
	return latency.ReadProfileFile(o.profile(d.profile))
}
