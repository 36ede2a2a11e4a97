package search

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// Preset is a published set of objectives.
type Preset struct {
	// Name of the preset: "mlperf:llama-3.1-8b-server".
	Name string
	// SLO are its objectives.
	SLO measure.SLO
	// MinDuration is how long the rules want a run to last.
	MinDuration time.Duration
}

// Presets returns all presets: MLPerf Inference's datacenter scenarios for Llama, as in
// loadgen/mlperf.conf of v5.1 (ttft_latency, tpot_latency, Server.min_duration, and
// target_latency_percentile 99). LoadGen counts what takes longer than the bound.
func Presets() []Preset {
	presets := []struct {
		name       string
		ttft, tpot time.Duration
	}{
		{"llama-3.1-8b-server", 2000, 100},
		{"llama-3.1-8b-interactive", 500, 30},
		{"llama-2-70b-server", 2000, 200},
		{"llama-2-70b-interactive", 450, 40},
		{"llama-3.1-405b-server", 6000, 175},
		{"llama-3.1-405b-interactive", 4500, 80},
	}
	all := make([]Preset, len(presets))
	for i, p := range presets {
		all[i] = Preset{
			Name: "mlperf:" + p.name,
			SLO: measure.SLO{Terms: []measure.Term{
				{Latency: "ttft", Percentile: 99, Bound: p.ttft * time.Millisecond, Inclusive: true},
				{Latency: "tpot", Percentile: 99, Bound: p.tpot * time.Millisecond, Inclusive: true},
			}},
			MinDuration: 10 * time.Minute,
		}
	}
	return all
}

// PresetNames lists the presets' names, separated by commas.
func PresetNames() string {
	var names []string
	for _, p := range Presets() {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// FindPreset returns a preset by name. The error lists all names.
func FindPreset(name string) (Preset, error) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, nil
		}
	}
	return Preset{}, fmt.Errorf("no preset %q; there are %s", name, PresetNames())
}
