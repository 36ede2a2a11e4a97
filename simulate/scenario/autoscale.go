package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/spelling"
	"github.com/tandem-serving/tandem/simulate"
)

// What autoscalers do unless the file says otherwise.
const (
	defaultScaleEvery  = 5 * time.Second
	defaultStartTime   = 30 * time.Second
	defaultUtilisation = 0.7
	defaultTokens      = 2000
)

// readAutoscale reads which pools follow the load, and adds the workers that they may come to
// have.
func (s *Scenario) readAutoscale(top *section) error {
	section, err := top.sub("autoscale")
	if err != nil || section == nil {
		return err
	}
	a := &simulate.Autoscale{
		Config: scaling.DefaultConfig(), Every: defaultScaleEvery, StartTime: defaultStartTime,
		TargetUtilisation: defaultUtilisation, TargetTokens: defaultTokens,
	}
	a.Bounds = scaling.Bounds{}
	if err := s.readScaled(section, a); err != nil {
		return err
	}
	if a.Policy, err = section.text("policy"); err != nil {
		return err
	}
	if a.Policy == "" {
		a.Policy = simulate.ScaleDesired
	}
	if err := checkScalePolicy(a.Policy); err != nil {
		return section.errorf("policy", "%q: %w", "autoscale.policy", err)
	}
	for _, of := range []struct {
		key         string
		least, most time.Duration
		to          *time.Duration
	}{{"every", time.Second, time.Hour, &a.Every}, {"start-time", 0, maxTime, &a.StartTime}, {"down-after", 0, maxTime, &a.DownAfter}} {
		if _, err := section.duration(of.key, of.least, of.most, of.to); err != nil {
			return err
		}
	}
	for _, of := range []struct {
		key         string
		least, most float64
		to          *float64
	}{{"utilisation", 0.05, 1, &a.Utilisation}, {"target-utilisation", 0.05, 1, &a.TargetUtilisation}, {"target-tokens", 1, 1e9, &a.TargetTokens}} {
		if _, err := section.number(of.key, of.least, of.most, of.to); err != nil {
			return err
		}
	}
	s.config.Autoscale = a
	return section.end()
}

// readScaled reads the ranges of pools, of each role one.
func (s *Scenario) readScaled(section *section, a *simulate.Autoscale) error {
	for _, p := range s.pools {
		if p.worker.Role == controlv1.Role_ROLE_KVTRANSFER {
			if section.keys[p.name] != nil {
				return section.errorf(p.name, "%q: a pool of block stores does not follow the load", section.name+p.name)
			}
			continue
		}
		prefill := p.worker.Role == controlv1.Role_ROLE_PREFILL
		name, bounds := &a.Decode, &a.Bounds.Decode
		if prefill {
			name, bounds = &a.Prefill, &a.Bounds.Prefill
		}
		node := section.take(p.name)
		if node == nil {
			bounds.Min, bounds.Max = bounds.Min+p.count, bounds.Max+p.count
			continue
		}
		text, err := section.scalar(p.name, node)
		if err != nil {
			return err
		}
		r, err := scaling.ParseRange(text)
		switch {
		case err != nil:
			return section.errorf(p.name, "%q: %w", section.name+p.name, err)
		case slices.ContainsFunc(s.pools, func(o *pool) bool { return o != p && o.worker.Role == p.worker.Role }):
			return section.errorf(p.name, "%q: another pool has the same role: a pool that follows the load is the only one of its role", section.name+p.name)
		case p.count < r.Min || p.count > r.Max:
			return section.errorf(p.name, "%q is %s, but the pool begins with %d: change one of them", section.name+p.name, text, p.count)
		}
		*name, *bounds = p.name, r
		for p.made < r.Max {
			s.add(p, true)
		}
		if len(s.workers) > maxWorkers {
			return section.errorf(p.name, "%d workers are more than %d: allow fewer", len(s.workers), maxWorkers)
		}
	}
	if a.Prefill == "" && a.Decode == "" {
		return section.errorf("", "no pool follows the load: name one, such as \"autoscale: {%s: 1..8}\"", s.pools[len(s.pools)-1].name)
	}
	return nil
}

func checkScalePolicy(name string) error {
	return spelling.Check("policy of scaling", name, simulate.ScalePolicies())
}

// ScaleBy has the pools that follow the load do so by a policy.
func (s *Scenario) ScaleBy(policy string) error {
	if err := checkScalePolicy(policy); err != nil {
		return err
	}
	if s.config.Autoscale == nil {
		return fmt.Errorf("no pool of %s follows the load: add autoscale to it", s.doc.file)
	}
	s.config.Autoscale.Policy = policy
	return nil
}

// Fix has no pool follow the load, and gives pools a size, as in p=4,d=9.
func (s *Scenario) Fix(sizes string) error {
	for part := range strings.SplitSeq(sizes, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		count, err := strconv.Atoi(text)
		if err != nil || count < 0 || count > maxWorkers {
			return fmt.Errorf("%q: write the pools and how many workers each has, as in p=4,d=9", part)
		}
		p, err := s.pool(name)
		if err != nil {
			return err
		}
		for p.made < count {
			s.add(p, true)
		}
		for j := range s.workers {
			if w := &s.workers[j]; w.Pool == name {
				w.Down = count <= 0
				count--
			}
		}
	}
	s.config.Autoscale = nil
	return nil
}
