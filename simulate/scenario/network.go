package scenario

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/simulate"
)

// What a network is like where nobody says otherwise: a rack of today's.
const (
	defaultLatency        = 50 * time.Microsecond
	defaultLocalLatency   = 10 * time.Microsecond
	defaultBytesPerSecond = 12.5e9
	minLease              = time.Second
	maxLatency            = time.Minute
)

func (s *Scenario) readNetwork(top *section) error {
	n := &s.config.Network
	*n = simulate.Network{Latency: defaultLatency, LocalLatency: defaultLocalLatency, BytesPerSecond: defaultBytesPerSecond}
	network, err := top.sub("network")
	if err != nil || network == nil {
		return err
	}
	for key, into := range map[string]*time.Duration{"latency": &n.Latency, "local-latency": &n.LocalLatency} {
		if _, err := network.duration(key, 0, maxLatency, into); err != nil {
			return err
		}
	}
	rate, err := network.rate("bandwidth")
	if err != nil {
		return err
	}
	if rate > 0 {
		n.BytesPerSecond = rate
	}
	err = s.groups(network, "pairs", func(entry *section, between [2]simulate.Hosts) error {
		pair := simulate.Pair{Between: between, Latency: n.Latency}
		if _, err := entry.duration("latency", 0, maxLatency, &pair.Latency); err != nil {
			return err
		}
		if pair.BytesPerSecond, err = entry.rate("bandwidth"); err != nil {
			return err
		}
		n.Pairs = append(n.Pairs, pair)
		return nil
	})
	if err != nil {
		return err
	}
	err = s.groups(network, "links", func(entry *section, between [2]simulate.Hosts) error {
		rate, err := entry.rate("bandwidth")
		if err == nil && rate == 0 {
			err = entry.errorf("bandwidth", "a link needs a bandwidth, such as \"bandwidth: 25GB/s\"")
		}
		n.Links = append(n.Links, simulate.Link{Between: between, BytesPerSecond: rate})
		return err
	})
	if err != nil {
		return err
	}
	return network.end()
}

// groups reads a list of what lies between two groups of hosts.
func (s *Scenario) groups(in *section, key string, read func(*section, [2]simulate.Hosts) error) error {
	node := in.take(key)
	if node == nil {
		return nil
	}
	if s.template {
		return in.errorf(key, "%q is for hosts that this file names, and a plan makes others: leave it out, or simulate the file", in.name+key)
	}
	if node.Kind != yaml.SequenceNode {
		return in.errorf(key, "%q must be a list, each item with \"between: [p-*, d-*]\"", in.name+key)
	}
	for _, item := range node.Content {
		entry, err := s.doc.section(item, in.name+key)
		if err != nil {
			return err
		}
		between, err := s.between(entry, "between", entry.take("between"))
		if err != nil {
			return err
		}
		if err := read(entry, between); err != nil {
			return err
		}
		if err := entry.end(); err != nil {
			return err
		}
	}
	return nil
}

// between reads two groups of hosts.
func (s *Scenario) between(entry *section, key string, node *yaml.Node) (between [2]simulate.Hosts, err error) {
	if node == nil || node.Kind != yaml.SequenceNode || len(node.Content) != 2 {
		return between, entry.errorf(key, "%q needs two groups of hosts, such as %s: [p-*, d-*] or %s: [[p-1, p-2], d-1]", entry.name+key, key, key)
	}
	for i, group := range node.Content {
		if between[i], err = s.hosts(entry, key, group); err != nil {
			return between, err
		}
	}
	if one := between[0]; len(one) == 1 && slices.Equal(one, between[1]) {
		return between, entry.errorf(key, "%q: both are the host %s: name two hosts", entry.name+key, one[0])
	}
	return between, nil
}
