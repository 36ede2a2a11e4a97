package plan

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// ClusterFlags say what workers and network are like: a scenario's file, or flags.
type ClusterFlags struct {
	// File is a scenario, whose counts, events and autoscaling do not matter.
	File string
	// Model is a preset or a directory, Profile a file of step times: of `tandem profile`,
	// or DistServe's with Entry and TensorParallel. ProfileModel is the model that a
	// profile may be of, if it is not Model.
	Model, Profile, Entry, TensorParallel, ProfileModel string
	// Bandwidth and Latency are the network's; empty: a scenario's defaults.
	Bandwidth, Latency string

	set *pflag.FlagSet
}

// engineFlags are those of workers, as `up` has them, by their keys in a scenario's pool.
var engineFlags = []string{"kv-memory", "max-batch-tokens", "max-sequences"}

// stepFlags are the step times of the simulated engine without a profile, by their keys in
// a scenario.
var stepFlags = map[string]string{
	"simulated-base-ms": "base-ms", "simulated-per-token-ms": "per-token-ms", "simulated-per-context-token-ms": "per-context-token-ms",
}

// RegisterFlags adds the flags.
func (c *ClusterFlags) RegisterFlags(fs *pflag.FlagSet) {
	c.set = fs
	fs.StringVar(&c.File, "scenario", "", "file of a scenario with the model, network, routers and a pool of each kind, instead of the flags of these; its traffic holds where no flag says otherwise")
	fs.StringVar(&c.Model, "model", "", "model: a preset of 'tandem model synth', or a directory with a config.json (default: that of the profile if it is a preset, or else the bundled one)")
	fs.StringVar(&c.Profile, "profile", "", "file of step times, from 'tandem profile --out' or DistServe's with --entry (default: those of the simulated engine's flags)")
	fs.StringVar(&c.Entry, "entry", "", "model in DistServe's file, such as facebook/opt-13b")
	fs.StringVar(&c.TensorParallel, "tensor-parallel", "1", "degree of tensor parallelism in DistServe's file")
	fs.StringVar(&c.ProfileModel, "profile-model", "", "model that the profile was measured with, to use its times for another one")
	fs.StringVar(&c.Bandwidth, "bandwidth", "", "bandwidth of each worker's network, such as 10GB/s (default 12.5GB/s)")
	fs.StringVar(&c.Latency, "latency", "", "latency of a message between workers, such as 50us (default 50us)")
	var engine engines.Config
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	engine.RegisterFlags(own)
	for _, name := range engineFlags {
		fs.AddFlag(own.Lookup(name))
	}
	fs.AddFlag(own.Lookup("block-tokens"))
	for name := range stepFlags {
		fs.AddFlag(own.Lookup(name))
	}
}

// describing are the flags that go with no scenario.
var describing = slices.Concat(
	[]string{"model", "profile", "entry", "tensor-parallel", "profile-model", "bandwidth", "latency", "block-tokens"},
	engineFlags, slices.Sorted(maps.Keys(stepFlags)),
)

// Scenario is the cluster. traffic are the flags of the load, of which a scenario's file sets
// those that were not set before. bundled finds the directory of the bundled model.
func (c *ClusterFlags) Scenario(traffic *pflag.FlagSet, bundled func() (string, error)) (*scenario.Scenario, error) {
	if c.File != "" {
		if i := slices.IndexFunc(describing, c.set.Changed); i >= 0 {
			return nil, fmt.Errorf("--%s: the scenario says that: leave out one of them", describing[i])
		}
		return scenario.ReadTemplate(c.File, traffic)
	}
	text, err := c.text(bundled)
	if err != nil {
		return nil, err
	}
	read, err := scenario.Parse(flagsName, []byte(text), traffic)
	if err != nil {
		return nil, errors.New(fromFlags.ReplaceAllString(err.Error(), ""))
	}
	return read, nil
}

// flagsName is what a scenario that flags make is called, and fromFlags what its errors begin
// with.
const flagsName = "flags"

var fromFlags = regexp.MustCompile("^" + flagsName + ":[0-9]+: ")

// text is the scenario that the flags make.
func (c *ClusterFlags) text(bundled func() (string, error)) (string, error) {
	profile, err := c.profile()
	if err != nil {
		return "", err
	}
	if c.Model == "" && profile != nil && c.ProfileModel == "" {
		if _, unknown := model.Preset(profile.Model); unknown == nil {
			c.Model = profile.Model
		}
	}
	name := c.Model
	if name == "" {
		if name, err = bundled(); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "model: %q\ntraffic: {}\nrouter: {tenant-max-requests: %d}\n", name, simulatedtarget.ManyRequests)
	if c.set.Changed("block-tokens") {
		fmt.Fprintf(&b, "block-tokens: %s\n", c.set.Lookup("block-tokens").Value)
	}
	if err := c.writeProfile(&b, profile, filepath.Base(name)); err != nil {
		return "", err
	}
	var network []string
	for key, value := range map[string]string{"bandwidth": c.Bandwidth, "latency": c.Latency} {
		if value != "" {
			network = append(network, fmt.Sprintf("%s: %q", key, value))
		}
	}
	fmt.Fprintf(&b, "network: {%s}\npools:\n", strings.Join(network, ", "))
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&b, "  %s: {role: %s", role, role)
		for _, flag := range engineFlags {
			if c.set.Changed(flag) {
				fmt.Fprintf(&b, ", %s: %q", flag, c.set.Lookup(flag).Value)
			}
		}
		b.WriteString("}\n")
	}
	return b.String(), nil
}

// profile reads the profile's file; nil: there is none.
func (c *ClusterFlags) profile() (*latency.Profile, error) {
	if c.Profile == "" {
		if c.Entry != "" || c.ProfileModel != "" || c.set.Changed("tensor-parallel") {
			return nil, errors.New("--entry, --tensor-parallel and --profile-model are of a profile: add --profile FILE")
		}
		return nil, nil
	}
	file, err := os.Open(c.Profile)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w: name a file of step times, such as 'tandem profile --out' writes", err)
	}
	defer file.Close()
	var p *latency.Profile
	if c.Entry != "" {
		p, err = latency.ReadDistServe(file, c.Entry, c.TensorParallel)
	} else {
		p, err = latency.ReadProfile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("--profile: %s: %w", c.Profile, err)
	}
	return p, nil
}

// writeProfile writes the step times of a model's profile.
func (c *ClusterFlags) writeProfile(b *strings.Builder, profile *latency.Profile, name string) error {
	var steps []string
	for flag, key := range stepFlags {
		if c.set.Changed(flag) {
			steps = append(steps, fmt.Sprintf("%s: %s", key, c.set.Lookup(flag).Value))
		}
	}
	switch {
	case profile == nil && len(steps) > 0:
		fmt.Fprintf(b, "profile: {%s}\n", strings.Join(steps, ", "))
	case profile == nil:
	case len(steps) > 0:
		return errors.New("--profile and the step times of --simulated-base-ms and its like exclude one another: leave out one of them")
	case c.Entry != "":
		fmt.Fprintf(b, "profile: {file: %q, entry: %q, tensor-parallel: %q}\n", c.Profile, c.Entry, c.TensorParallel)
	case profile.Model == "":
		fmt.Fprintf(b, "profile: {file: %q}\n", c.Profile)
	case profile.Model == name || profile.Model == c.ProfileModel:
		fmt.Fprintf(b, "profile: {file: %q, model: %q}\n", c.Profile, profile.Model)
	case c.ProfileModel != "":
		return fmt.Errorf("--profile-model: %s is a profile of %s, not of %s: correct one of them", c.Profile, profile.Model, c.ProfileModel)
	default:
		return fmt.Errorf("--profile: %s is a profile of %s, but the model is %s: pass --model %s, or --profile-model %s to use its times all the same",
			c.Profile, profile.Model, name, profile.Model, profile.Model)
	}
	return nil
}
