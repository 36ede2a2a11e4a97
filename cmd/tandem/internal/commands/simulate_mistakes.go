package commands

import (
	"errors"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/simulate/scenario"
)

// givenFlags are those that say the traffic of a simulation, which the file of its scenario
// says too: they tell which of the two is wrong.
type givenFlags struct {
	cmd *cobra.Command
	// set has the flags that were set before the file was read.
	set   map[string]bool
	trace *string
}

func newGivenFlags(cmd *cobra.Command, traffic *pflag.FlagSet, trace *string) givenFlags {
	g := givenFlags{cmd, map[string]bool{}, trace}
	traffic.VisitAll(func(f *pflag.Flag) { g.set[f.Name] = f.Changed })
	return g
}

// place is err with where the flag that it begins with was set.
func (g givenFlags) place(read *scenario.Scenario, err error) error {
	if first, _, several := strings.Cut(err.Error(), "\n"); several { // one fault at a time
		err = errors.New(first)
	}
	text := err.Error()
	name := flagAtStart.FindString(text)
	switch {
	case name != "" && g.set[name[2:]]:
		return settingsError(g.cmd, err)
	case g.set["trace"] && strings.Contains(text, *g.trace): // something in that file
		return err
	}
	return read.Place(err)
}

var flagAtStart = regexp.MustCompile("^--[a-z-]+")
