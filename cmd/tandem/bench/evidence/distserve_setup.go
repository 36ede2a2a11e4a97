package evidence

import (
	"fmt"
	"strconv"
	"strings"
	"time"
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

// workers are some of one role, each on as many A100s as its degree of tensor parallelism.
func (m opt) workers(role string, count, degree int) group {
	return group{role, count, machine{
		split: fmt.Sprintf("TP%d", degree), profile: fmt.Sprintf("a100-%s-tp%d.json", m.name, degree), model: "facebook/" + m.name,
		kvMemory: strconv.Itoa(m.kvBytes(degree)), cost: float64(degree),
	}}
}

// kvBytes is the KV memory of a worker of a degree of tensor parallelism, in FP16.
func (m opt) kvBytes(degree int) int {
	const bytesOfFP16 = 2
	return m.tokens[degree] * 2 * m.layers * m.hidden * bytesOfFP16
}

// aggregatedLayouts are the layouts of a number of GPUs in which all workers do both phases,
// disaggregatedLayouts those in which each does one.
func (m opt) aggregatedLayouts(gpus int) (all []layout) {
	for _, degree := range []int{8, 4, 2, 1} {
		if m.tokens[degree] > 0 && gpus%degree == 0 {
			groups := []group{m.workers("decode", gpus/degree, degree)}
			all = append(all, layout{groups, true}, layout{groups, false})
		}
	}
	return all
}

func (m opt) disaggregatedLayouts(gpus int, p placement) (all []layout) {
	for _, prefill := range []int{4, 2, 1} {
		for _, decode := range []int{4, 2, 1} {
			for n := 1; n*prefill < gpus; n++ {
				left := gpus - n*prefill
				if m.tokens[prefill] > 0 && m.tokens[decode] > 0 && left%decode == 0 {
					groups := []group{m.workers("prefill", n, prefill), m.workers("decode", left/decode, decode)}
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
	// free is as DistServe's simulator, which has no term for transfers. It has a bandwidth for the router to learn.
	free   = fabric{"free", "{latency: 1us, bandwidth: 100000GB/s}"}
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
		return m.aggregatedLayouts(gpus)
	}
	return m.disaggregatedLayouts(gpus, p)
}

// application is a row of DistServe's table of SLOs.
type application struct {
	name    string
	model   opt
	gpus    int
	lengths string // lines of traffic
	// Bounds at p90, seconds.
	ttft, tpot float64
	// keeps: the router gets no bounds, and refuses nothing.
	keeps bool
}

// String is such as "chatbot, OPT-13B, 4 A100s".
func (a application) String() string { return fmt.Sprintf("%s, %d A100s", a.name, a.gpus) }

// distServeWarmup is how long nothing counts: queues grow for some times a TTFT of 15 s, and routers learn from
// requests, of which few come.
func (o Options) distServeWarmup() time.Duration {
	if o.Small {
		return 10 * time.Second
	}
	return 40 * time.Second
}

// scenario is the text of one, as 'tandem simulate' reads it.
func (a application) scenario(o Options, on deployment, sloScale float64) string {
	var out strings.Builder
	out.WriteString(a.model.text())
	router := "tenant-max-requests: 1000000"
	if a.keeps {
		router += ", " + refuseNothing
	}
	fmt.Fprintf(&out, "block-tokens: 16\nnetwork: %s\nrouter: {%s}\npools:\n%s", on.fabric.text, router, on.layout.pools(o))
	fmt.Fprintf(&out, "traffic:\n  rate: 1\n  mode: %s\n  duration: 1ms\n  min-requests: %d\n  warmup: %v\n  slo: %q\n  send-slo: %t\n%s",
		on.placement, on.requests, o.distServeWarmup(), fmt.Sprintf("ttft:p90<%s,tpot:p90<%s", seconds(a.ttft*sloScale), seconds(a.tpot*sloScale)), !a.keeps, a.lengths)
	return out.String()
}
