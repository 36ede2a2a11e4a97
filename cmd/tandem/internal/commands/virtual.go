package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// virtual is a cluster on virtual time that takes the place of a mesh.
type virtual struct {
	*simulation
	simulatedServer
}

var _ contenders.Virtual = (*virtual)(nil)

// Ask sets the bounds that requests carry.
func (v *virtual) Ask(b contenders.Bounds) { v.ttft, v.tpot = b.TTFT, b.TPOT }

// virtualPlan is a cluster like a mesh.
type virtualPlan struct {
	// model is a preset or a directory, profile a file with step times; empty: those of the
	// simulated engine's flags.
	model, profile string
	kvMemory       string // of each worker; empty: the default
	mesh           processes.Plan
	mode           inferencev1.Mode
}

// cluster makes it.
func (p virtualPlan) cluster() (*virtual, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "model: %q\ntraffic: {rate: 1}\nrouter: {tenant-max-requests: %d}\n", p.model, manyRequests)
	if p.profile != "" {
		fmt.Fprintf(&text, "profile: %q\n", p.profile)
	}
	text.WriteString("pools:\n")
	for _, role := range []string{"prefill", "decode"} {
		count := p.mesh.Decode
		if role == "prefill" {
			count = p.mesh.Prefill
		}
		if count == 0 {
			continue
		}
		fmt.Fprintf(&text, "  %s: {role: %s, count: %d", role, role, count)
		if p.kvMemory != "" {
			fmt.Fprintf(&text, ", kv-memory: %s", p.kvMemory)
		}
		text.WriteString("}\n")
	}
	var traffic loadtest.Config
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	traffic.RegisterFlags(fs)
	read, err := scenario.Parse("the cluster", []byte(text.String()), fs)
	if err != nil {
		return nil, err
	}
	return &virtual{&simulation{scenario: read, seed: 1, mode: p.mode}, simulatedServer{read, "on virtual time"}}, nil
}
