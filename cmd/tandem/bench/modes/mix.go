package modes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Mix is a kind of traffic.
type Mix struct {
	Name string
	// set changes the traffic to it; nil: it is that already.
	set func(*workload.Spec) error
}

// Mixes are those that have names.
func Mixes() []Mix {
	return []Mix{
		lengths("1024/16", "1024", "16"),
		lengths("256/64", "256", "64"),
		lengths("32/256", "32", "256"),
		bursts(lengths("azure", "lognormal:1155,613", "lognormal:211,273")),
	}
}

// Names are those of Mixes.
func Names() (names []string) {
	for _, m := range Mixes() {
		names = append(names, m.Name)
	}
	return names
}

// Named are the mixes of some names; without names all.
func Named(names []string) ([]Mix, error) {
	all := Mixes()
	if len(names) == 0 {
		return all, nil
	}
	var mixes []Mix
	for _, name := range names {
		i := slices.IndexFunc(all, func(m Mix) bool { return m.Name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(Names(), ", "))
		case slices.ContainsFunc(mixes, func(m Mix) bool { return m.Name == name }):
			return nil, fmt.Errorf("%q is given twice", name)
		}
		mixes = append(mixes, all[i])
	}
	return mixes, nil
}

// Given is the mix that a load describes.
func Given(traffic workload.Spec) Mix {
	text := func(d workload.Distribution, unset string) string {
		if d.IsSet() {
			return d.String()
		}
		return unset
	}
	if traffic.Trace != "" && !traffic.PromptTokens.IsSet() && !traffic.OutputTokens.IsSet() {
		return Mix{Name: "trace"}
	}
	return Mix{Name: text(traffic.PromptTokens, "512") + "/" + text(traffic.OutputTokens, "128")}
}

func lengths(name, prompt, output string) Mix {
	return Mix{name, func(s *workload.Spec) (err error) {
		if s.PromptTokens, err = workload.ParseLengths(prompt); err != nil {
			return err
		}
		s.OutputTokens, err = workload.ParseLengths(output)
		return err
	}}
}

// burstiness is the shape of the gaps between requests that come in bursts.
const burstiness = 0.3

func bursts(m Mix) Mix {
	return Mix{m.Name, func(s *workload.Spec) error {
		s.Arrival, s.Burstiness = workload.Gamma, burstiness
		return m.set(s)
	}}
}
