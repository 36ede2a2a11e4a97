package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/spelling"
	"github.com/tandem-serving/tandem/simulate"
)

// actions are what an event can do; each has one.
var actions = []string{"kill", "start", "drain", "undrain", "slow", "cut", "heal", "scale", "rate-times"}

func (s *Scenario) readEvents(top *section, traffic *pflag.FlagSet) error {
	node := top.take("events")
	if node == nil {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		return top.errorf("events", "\"events\" must be a list, such as \"- {at: 20s, kill: d-1}\"")
	}
	for _, item := range node.Content {
		event, err := s.doc.section(item, "events")
		if err != nil {
			return err
		}
		if err := s.readEvent(event, traffic); err != nil {
			return err
		}
		if err := event.end(); err != nil {
			return err
		}
	}
	slices.SortStableFunc(s.config.Events, func(a, b simulate.Event) int { return cmp.Compare(a.At, b.At) })
	return nil
}

func (s *Scenario) readEvent(event *section, traffic *pflag.FlagSet) error {
	at, is, err := event.duration("at", 0, maxTime)
	if err == nil && !is {
		err = event.errorf("at", "an event needs a time, such as \"at: 20s\"")
	}
	if err != nil {
		return err
	}
	var what string
	for _, action := range actions {
		if event.keys[action] == nil {
			continue
		}
		if what != "" {
			return event.errorf(action, "an event does one thing, and this one has both %s and %s: make two of it", what, action)
		}
		what = action
	}
	event.asked = append(event.asked, actions...)
	if what == "" {
		if err := event.end(); err != nil && len(event.keys) > 0 {
			return err
		}
		return event.errorf("", "the event does nothing: add one of %s", strings.Join(actions, ", "))
	}
	value := event.take(what)
	lasts := time.Duration(0)
	if what == "slow" || what == "cut" || what == "rate-times" {
		if lasts, _, err = event.duration("for", time.Microsecond, maxTime); err != nil {
			return err
		}
	}
	add := func(at time.Duration, do simulate.Action) {
		s.config.Events = append(s.config.Events, simulate.Event{At: at, Do: do})
	}
	switch what {
	case "rate-times":
		return s.surge(event, traffic, at, lasts, value)
	case "scale":
		return s.scale(event, at, value)
	case "cut", "heal":
		between, err := s.between(event, what, value)
		if err != nil {
			return err
		}
		if what == "heal" {
			add(at, simulate.Heal{Between: between})
			return nil
		}
		add(at, simulate.Cut{Between: between})
		if lasts > 0 {
			add(at+lasts, simulate.Heal{Between: between})
		}
		return nil
	}
	ids, err := s.ids(event, what, value)
	if err != nil {
		return err
	}
	factor := 1.0
	if what == "slow" {
		if factor, is, err = event.number("factor", 1/simulated.MaxSlow, simulated.MaxSlow); err != nil {
			return err
		}
		if !is {
			return event.errorf("slow", "\"events.slow\" needs a factor, such as \"factor: 3\"")
		}
	}
	for _, id := range ids {
		switch what {
		case "kill":
			add(at, simulate.Kill{Worker: id})
		case "start":
			add(at, simulate.Start{Worker: id})
		case "drain":
			add(at, simulate.Drain{Worker: id})
		case "undrain":
			add(at, simulate.Undrain{Worker: id})
		case "slow":
			add(at, simulate.Slow{Worker: id, Factor: factor})
			if lasts > 0 {
				add(at+lasts, simulate.Slow{Worker: id, Factor: s.usual(id)})
			}
		}
	}
	return nil
}

// usual is by how much a worker's pool is slower than its profile.
func (s *Scenario) usual(id string) float64 {
	for i := range s.workers {
		if w := &s.workers[i]; w.ID == id && w.Slow > 0 {
			return w.Slow
		}
	}
	return 1
}

// scale adds the workers that the pool does not have yet.
func (s *Scenario) scale(event *section, at time.Duration, value *yaml.Node) error {
	name, err := event.scalar("scale", value)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.pools, func(p *pool) bool { return p.name == name })
	if i < 0 {
		known := func(yield func(string) bool) {
			for _, p := range s.pools {
				if !yield(p.name) {
					return
				}
			}
		}
		nearest, _ := spelling.Nearest(name, known)
		return event.errorf("scale", "\"events.scale\": there is no pool %q: did you mean %q?", name, nearest)
	}
	to, is, err := event.integer("to", 0, maxWorkers)
	if err == nil && !is {
		err = event.errorf("scale", "\"events.scale\" needs the number of workers, such as \"to: 6\"")
	}
	if err != nil {
		return err
	}
	p := s.pools[i]
	for p.made < to {
		s.add(p, true)
	}
	s.config.Events = append(s.config.Events, simulate.Event{At: at, Do: simulate.Scale{Pool: name, To: to}})
	return nil
}

// surge is the load's: live and simulated load know it.
func (s *Scenario) surge(event *section, traffic *pflag.FlagSet, at, lasts time.Duration, value *yaml.Node) error {
	factor, err := event.scalar("rate-times", value)
	if err != nil {
		return err
	}
	if lasts == 0 {
		return event.errorf("rate-times", "\"events.rate-times\" needs how long it lasts, such as \"for: 1m\"")
	}
	surge := fmt.Sprintf("%v+%v=%s", at, lasts, factor)
	if err := traffic.Set("surge", surge); err != nil {
		return event.errorf("rate-times", "%w", wrong("events.rate-times", factor, traffic.Lookup("surge"), err))
	}
	s.doc.lines["surge"] = event.at["rate-times"]
	return nil
}
