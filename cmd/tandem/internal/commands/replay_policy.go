package commands

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// policyFlags change, by the flags of a router, how workers are chosen.
type policyFlags struct {
	flags *pflag.FlagSet
	given routing.Config
}

const policyPrefix = "router-"

// routingFlags are the flags that set a configuration, of which one has a short name too.
func routingFlags(c *routing.Config) *pflag.FlagSet {
	fs := pflag.NewFlagSet("policy", pflag.ContinueOnError)
	c.RegisterFlags(fs, policyPrefix)
	fs.StringVar(&c.Policy, "policy", routing.DefaultPolicy, "same as --"+policyPrefix+"policy")
	return fs
}

// register adds the flags and returns their names.
func (p *policyFlags) register(fs *pflag.FlagSet) (names []string) {
	p.flags = routingFlags(&p.given)
	p.flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	fs.AddFlagSet(p.flags)
	return names
}

// changed reports whether a flag was given.
func (p *policyFlags) changed() (changed bool) {
	p.flags.VisitAll(func(f *pflag.Flag) { changed = changed || f.Changed })
	return changed
}

// check refuses a policy that there is not, by the flag that names it.
func (p *policyFlags) check() error {
	if err := routing.CheckPolicy(p.given.Policy); err != nil {
		if p.flags.Lookup("policy").Changed {
			return fmt.Errorf("--policy: %w", err)
		}
		return fmt.Errorf("--%spolicy: %w", policyPrefix, err)
	}
	return nil
}

// change returns a configuration with what flags were given for.
func (p *policyFlags) change(config routing.Config) (routing.Config, error) {
	var c routing.Config
	fs := routingFlags(&c)
	c = config // in place of the defaults
	var err error
	p.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			err = errors.Join(err, fs.Set(f.Name, f.Value.String()))
		}
	})
	if invalid := c.Validate(); invalid != nil {
		err = errors.Join(err, fmt.Errorf("--%s%w", policyPrefix, invalid))
	}
	return c, err
}
