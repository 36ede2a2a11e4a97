package contenders

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// VirtualPlan is a cluster on virtual time that is like a mesh.
type VirtualPlan struct {
	// Model is a preset or a directory, Profile a file with step times; empty: those of the
	// simulated engine's flags. ProfileModel is the model of the file's times; empty: it has to
	// be Model.
	Model, Profile, ProfileModel string

	KVMemory string // of each worker; empty: the default
	Mesh     processes.Plan
	Mode     inferencev1.Mode
}

// New makes it.
func (p VirtualPlan) New() (Virtual, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "model: %q\ntraffic: {rate: 1}\nrouter: {tenant-max-requests: %d}\n", p.Model, simulatedtarget.ManyRequests)
	if p.Profile != "" {
		fmt.Fprintf(&text, "profile: {file: %q", p.Profile)
		if p.ProfileModel != "" {
			fmt.Fprintf(&text, ", model: %q", p.ProfileModel)
		}
		text.WriteString("}\n")
	}
	text.WriteString("pools:\n")
	for _, role := range []string{"prefill", "decode"} {
		count := p.Mesh.Decode
		if role == "prefill" {
			count = p.Mesh.Prefill
		}
		if count == 0 {
			continue
		}
		fmt.Fprintf(&text, "  %s: {role: %s, count: %d", role, role, count)
		if p.KVMemory != "" {
			fmt.Fprintf(&text, ", kv-memory: %s", p.KVMemory)
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
	return &virtualMesh{Server: simulatedtarget.Server{Scenario: read, Address: "on virtual time", Seed: 1, Mode: p.Mode}}, nil
}

// virtualMesh is a cluster of a VirtualPlan.
type virtualMesh struct{ simulatedtarget.Server }

// Ask implements Virtual.
func (v *virtualMesh) Ask(b Bounds) { v.TTFT, v.TPOT = b.TTFT, b.TPOT }
