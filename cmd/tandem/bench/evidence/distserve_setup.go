package evidence

import (
	"fmt"
	"strings"
)

// opt is a model of DistServe's evaluation.
type opt struct {
	name                  string
	layers, hidden, heads int
	// parts are in how many its KV is sent: each is several layers, which makes fewer events.
	parts int
	// tokens is what fits into the KV memory of a group of A100s of 80 GB, by its size, as
	// DistServe's simulator has it (simdistserve/estimators/profile_data/max_num_tokens.csv).
	tokens map[int]int
	// most is more than a GPU can do, within how near a search comes, both requests a second.
	most, within float64
}

var (
	opt13B = opt{"opt-13b", 40, 5120, 40, 10, map[int]int{1: 66144, 2: 163008, 4: 356736}, 5, 0.04}
	opt66B = opt{"opt-66b", 64, 9216, 72, 8, map[int]int{2: 11600, 4: 78496, 8: 212304}, 1.5, 0.015}
)

// text is the line of a scenario that says what is served.
func (m opt) text() string { return "model: " + m.shape(optContext) + "\n" }

// shape is the model with a context of so many tokens.
func (m opt) shape(context int) string {
	return fmt.Sprintf("{name: %s, layers: %d, hidden-size: %d, heads: %d, head-size: %d, vocab-size: 50272, context-tokens: %d}",
		m.name, m.parts, m.hidden, m.heads, m.hidden/m.heads*m.layers/m.parts, context)
}

// optContext is the context of OPT, in tokens.
const optContext = 2048

// group is workers of one role, each on as many GPUs as its degree of tensor parallelism.
type group struct {
	role            string
	workers, degree int
}

// layout is how GPUs are used: decode workers alone do both phases.
type layout struct {
	groups []group
	// whole: workers compute prompts whole, as vLLM did when DistServe was compared with it.
	// Otherwise they do so in chunks that lengthen no step by much, as by default.
	whole bool
}

func (l layout) gpus() (n int) {
	for _, g := range l.groups {
		n += g.workers * g.degree
	}
	return n
}

// String is such as "2 prefill TP1 + 1 decode TP2".
func (l layout) String() string {
	var parts []string
	for _, g := range l.groups {
		role := g.role
		if len(l.groups) == 1 {
			role = "both"
		}
		parts = append(parts, fmt.Sprintf("%d %s TP%d", g.workers, role, g.degree))
	}
	text := strings.Join(parts, " + ")
	if l.whole {
		text += ", whole prompts"
	}
	return text
}

// together are the layouts of a number of GPUs in which all workers do both phases, apart
// those in which each does one.
func (m opt) together(gpus int) (all []layout) {
	for _, degree := range []int{8, 4, 2, 1} {
		if m.tokens[degree] > 0 && gpus%degree == 0 {
			groups := []group{{"decode", gpus / degree, degree}}
			all = append(all, layout{groups, true}, layout{groups, false})
		}
	}
	return all
}

func (m opt) apart(gpus int, p placement) (all []layout) {
	for _, prefill := range []int{4, 2, 1} {
		for _, decode := range []int{4, 2, 1} {
			for n := 1; n*prefill < gpus; n++ {
				left := gpus - n*prefill
				if m.tokens[prefill] > 0 && m.tokens[decode] > 0 && left%decode == 0 {
					groups := []group{{"prefill", n, prefill}, {"decode", left / decode, decode}}
					if p == auto { // whose decode workers compute prompts too
						all = append(all, layout{groups, true})
					}
					all = append(all, layout{groups, false})
				}
			}
		}
	}
	return all
}

// fabric is what connects workers.
type fabric struct{ name, text string }

var (
	// free is the network of DistServe's simulator, which has no term for transfers.
	free   = fabric{"free", "{latency: 1us}"}
	nvLink = fabric{"NVLink, 300 GB/s", "{latency: 20us, bandwidth: 300GB/s}"}
	// ethernet connects the nodes of DistServe's testbed.
	ethernet = fabric{"25 Gbit/s", "{latency: 50us, bandwidth: 3.125GB/s}"}
)

// placement is how requests are served, as requests ask for it.
type placement string

const (
	aggregated    placement = "aggregated"
	disaggregated placement = "disaggregated"
	auto          placement = "auto"
)

// layouts are those of a placement on a number of GPUs.
func (m opt) layouts(gpus int, p placement) []layout {
	if p == aggregated {
		return m.together(gpus)
	}
	return m.apart(gpus, p)
}

// application is a row of DistServe's table of SLOs.
type application struct {
	name    string
	model   opt
	gpus    int
	lengths string // lines of traffic
	// Bounds at p90, seconds.
	ttft, tpot float64
	// keeps: the router gets no bounds, and so refuses nothing.
	keeps bool
}

// String is such as "chatbot, OPT-13B, 4 A100s".
func (a application) String() string { return fmt.Sprintf("%s, %d A100s", a.name, a.gpus) }

// scenario is the text of one, as 'tandem simulate' reads it.
func (a application) scenario(o Options, on setup, sloScale float64) string {
	var out strings.Builder
	m := a.model
	out.WriteString(m.text())
	fmt.Fprintf(&out, "block-tokens: 16\nnetwork: %s\nrouter: {tenant-max-requests: 1000000}\npools:\n", on.fabric.text)
	for _, g := range on.layout.groups {
		const bytesOfFP16 = 2
		memory := m.tokens[g.degree] * 2 * m.layers * m.hidden * bytesOfFP16
		fmt.Fprintf(&out, "  %s: {role: %s, count: %d, profile: {file: %q, model: facebook/%s}, kv-memory: %d, max-sequences: 512, max-batch-tokens: %d",
			g.role, g.role, g.workers, o.profile(fmt.Sprintf("a100-%s-tp%d.json", m.name, g.degree)), m.name, memory, 2*optContext)
		if g.role == "prefill" || on.layout.whole {
			fmt.Fprintf(&out, ", chunk-tokens: %d", optContext)
		}
		if on.layout.whole {
			out.WriteString(", step-budget: 0s")
		}
		out.WriteString("}\n")
	}
	fmt.Fprintf(&out, "traffic:\n  rate: 1\n  mode: %s\n  duration: 1ms\n  min-requests: %d\n  warmup: 10s\n  slo: %q\n  send-slo: %t\n%s",
		on.placement, on.requests, fmt.Sprintf("ttft:p90<%s,tpot:p90<%s", seconds(a.ttft*sloScale), seconds(a.tpot*sloScale)), !a.keeps, a.lengths)
	return out.String()
}
