package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/simulate"
)

// actions are what an event can do; each has one.
var actions = []string{"kill", "start", "drain", "undrain", "slow", "cut", "heal", "scale", "rate-times"}

// happening is an event of the file, as far as it concerns others.
type happening struct {
	what string
	line int
	at   time.Duration
	// until is when a slow or cut ends; lasts: with an end that undoes all others.
	until time.Duration
	lasts bool
	// between are the hosts of a cut; of a slow both are its workers.
	between [2]simulate.Hosts
}

// readScales adds the workers that events add, before anything names workers.
func (s *Scenario) readScales(top *section) error {
	node := top.keys["events"]
	if node == nil || node.Kind != yaml.SequenceNode {
		return nil
	}
	for _, item := range node.Content {
		event, err := s.doc.section(item, "events")
		if err != nil {
			return err
		}
		if event.keys["scale"] == nil {
			continue
		}
		p, to, err := s.scaled(event)
		if err != nil {
			return err
		}
		for p.made < to {
			s.add(p, true)
		}
		if len(s.workers) > maxWorkers {
			return event.errorf("to", "%d workers are more than %d: scale to fewer", len(s.workers), maxWorkers)
		}
	}
	return nil
}

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
	s.config.Events = append(s.ends, s.config.Events...) // of those at one time, ends come first
	slices.SortStableFunc(s.config.Events, func(a, b simulate.Event) int { return cmp.Compare(a.At, b.At) })
	return s.overlaps()
}

// overlaps refuses slows and cuts with an end that would end others early.
func (s *Scenario) overlaps() error {
	slices.SortStableFunc(s.happenings, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	for i := range s.happenings {
		b := &s.happenings[i]
		for j := range i {
			a := &s.happenings[j]
			if b.at >= a.until || a.what != b.what {
				continue
			}
			switch name := a.meets(b); {
			case name == "":
			case !a.lasts && !b.lasts:
				a.until = b.at
			case b.until > b.at:
				return s.doc.errorf(b.line, "\"events.%s\" overlaps on %s with that of line %d: one must end before the other begins", b.what, name, a.line)
			}
		}
	}
	return nil
}

// meets names a worker or host that both concern; empty: there is none.
func (a *happening) meets(b *happening) string {
	for i := range b.between {
		first := slices.IndexFunc(a.between[0], func(name string) bool { return slices.Contains(b.between[i], name) })
		if first >= 0 && slices.ContainsFunc(a.between[1], func(name string) bool { return slices.Contains(b.between[1-i], name) }) {
			return a.between[0][first]
		}
	}
	return ""
}

// Ends refuses events that do not happen, since a run sends requests only for that long.
func (s *Scenario) Ends(after time.Duration) error {
	for _, h := range s.happenings {
		if h.at >= after {
			return s.doc.errorf(h.line, "the event is at %v, but the traffic ends at %v, warm-up included: move the event, or send for longer", h.at, after.Round(time.Microsecond))
		}
	}
	return nil
}

// moment is when an event of a scenario begins and ends.
type moment struct {
	scenario         *Scenario
	at, lasts, until time.Duration // lasts: 0 if it does not end
}

func (m *moment) add(do simulate.Action) {
	m.scenario.config.Events = append(m.scenario.config.Events, simulate.Event{At: m.at, Do: do})
}

// end adds what happens at the end, if there is one.
func (m *moment) end(do simulate.Action) {
	if m.lasts > 0 {
		m.scenario.ends = append(m.scenario.ends, simulate.Event{At: m.until, Do: do})
	}
}

func (s *Scenario) readEvent(event *section, traffic *pflag.FlagSet) error {
	when := moment{scenario: s, until: 2 * maxTime}
	is, err := event.duration("at", 0, maxTime, &when.at)
	if err == nil && !is {
		err = event.errorf("at", "an event needs a time, such as \"at: 20s\"")
	}
	if err != nil {
		return err
	}
	what, err := actionOf(event)
	if err != nil {
		return err
	}
	s.happenings = append(s.happenings, happening{what: what, line: event.at[what], at: when.at, until: when.at})
	h := &s.happenings[len(s.happenings)-1]
	if what == "slow" || what == "cut" || what == "rate-times" {
		if h.lasts, err = event.duration("for", time.Microsecond, maxTime, &when.lasts); err != nil {
			return err
		}
	}
	if when.lasts > 0 {
		when.until = when.at + when.lasts
	}
	switch what {
	case "rate-times":
		return s.surge(event, traffic, when.at, when.lasts)
	case "scale":
		p, to, err := s.scaled(event)
		if err != nil {
			return err
		}
		when.add(simulate.Scale{Pool: p.name, To: to})
		return nil
	case "cut", "heal":
		return s.readCut(event, what, when, h)
	}
	return s.readOfWorkers(event, what, when, h)
}

// actionOf is the one thing that an event does.
func actionOf(event *section) (what string, err error) {
	for _, action := range actions {
		if event.keys[action] == nil {
			continue
		}
		if what != "" {
			return "", event.errorf(action, "an event does one thing, and this one has both %s and %s: make two of it", what, action)
		}
		what = action
	}
	if what == "" {
		event.asked = append(event.asked, actions...)
		if err := event.end(); err != nil && len(event.keys) > 0 {
			return "", err
		}
		return "", event.errorf("", "the event does nothing: add one of %s", strings.Join(actions, ", "))
	}
	return what, nil
}

// readCut reads what cuts hosts off from each other, or ends that.
func (s *Scenario) readCut(event *section, what string, when moment, h *happening) (err error) {
	if h.between, err = s.between(event, what, event.take(what)); err != nil {
		return err
	}
	h.what = "cut"
	if what == "heal" {
		when.add(simulate.Heal{Between: h.between})
		return nil
	}
	h.until = when.until
	when.add(simulate.Cut{Between: h.between})
	when.end(simulate.Heal{Between: h.between})
	return nil
}

// readOfWorkers reads what is done to workers.
func (s *Scenario) readOfWorkers(event *section, what string, when moment, h *happening) error {
	ids, err := s.ids(event, what, event.take(what))
	if err != nil {
		return err
	}
	factor, unmeasured := 1.0, false
	if what == "slow" {
		is, err := event.number("factor", 1/simulated.MaxSlow, simulated.MaxSlow, &factor)
		if err != nil {
			return err
		}
		if !is {
			return event.errorf("slow", "\"events.slow\" needs a factor, such as \"factor: 3\"")
		}
		h.between = [2]simulate.Hosts{ids, ids}
		if unmeasured, err = event.boolean("unmeasured"); err != nil {
			return err
		}
	}
	for _, id := range ids {
		switch what {
		case "kill":
			when.add(simulate.Kill{Worker: id})
		case "start":
			when.add(simulate.Start{Worker: id})
		case "drain":
			when.add(simulate.Drain{Worker: id})
		case "undrain":
			when.add(simulate.Undrain{Worker: id})
		case "slow":
			when.add(simulate.Slow{Worker: id, Factor: factor, Unmeasured: unmeasured})
			when.end(simulate.Slow{Worker: id, Factor: s.usual(id)})
			if when.lasts > 0 || factor != s.usual(id) {
				h.until = when.until
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

// scaled is the pool of an event, and how many of its workers shall serve.
func (s *Scenario) scaled(event *section) (p *pool, to int, err error) {
	name, err := event.scalar("scale", event.take("scale"))
	if err != nil {
		return nil, 0, err
	}
	if p, err = s.pool(name); err != nil {
		return nil, 0, event.errorf("scale", "\"events.scale\": %w", err)
	}
	is, err := event.integer("to", 0, maxWorkers, &to)
	if err == nil && !is {
		err = event.errorf("scale", "\"events.scale\" needs the number of workers, such as \"to: 6\"")
	}
	return p, to, err
}

// surge is the load's: live and simulated load know it.
func (s *Scenario) surge(event *section, traffic *pflag.FlagSet, at, lasts time.Duration) error {
	var factor float64
	if _, err := event.number("rate-times", 0, workload.MaxSurge, &factor); err != nil {
		return err
	}
	if lasts == 0 {
		return event.errorf("rate-times", "\"events.rate-times\" needs how long it lasts, such as \"for: 1m\"")
	}
	surge := fmt.Sprintf("%v+%v=%v", at, lasts, factor)
	if err := traffic.Set("surge", surge); err != nil {
		return event.errorf("rate-times", "%w", wrong("events.rate-times", surge, traffic.Lookup("surge"), err))
	}
	s.doc.lines["surge"] = event.at["rate-times"]
	return nil
}
