package simulate

import (
	"slices"
	"time"
)

// Network is what connects hosts.
type Network struct {
	// Latency is that of one message between two hosts, LocalLatency within one.
	Latency, LocalLatency time.Duration
	// BytesPerSecond is what a host sends, and what it receives, at most; 0: without limit.
	BytesPerSecond float64
	// Pairs differ from that; the last one that matches counts.
	Pairs []Pair
	// Links are shared by all that passes over them.
	Links []Link
}

// Pair is how each host of one group reaches each host of another.
type Pair struct {
	Between [2]Hosts
	Latency time.Duration
	// BytesPerSecond is for each two hosts in each direction; 0: only their own limits count.
	BytesPerSecond float64
}

// Link carries all traffic between two groups of hosts, such as the uplink of a rack.
type Link struct {
	Between [2]Hosts
	// BytesPerSecond is for each direction.
	BytesPerSecond float64
}

// Hosts are hosts by name; none: all others.
type Hosts []string

// path is what lies between two hosts.
type path struct {
	latency time.Duration
	lines   []*line // after the sender's way out
}

// link is a Link with its lines.
type link struct {
	Link
	lines [2]line // from the first group to the second, and back
}

func newLink(l Link) *link {
	return &link{Link: l, lines: [2]line{{bytesPerSecond: l.BytesPerSecond}, {bytesPerSecond: l.BytesPerSecond}}}
}

// pathOf is the path between two hosts.
func (c *Cluster) pathOf(from, to *host) *path {
	if to.number < len(from.paths) && from.paths[to.number] != nil {
		return from.paths[to.number]
	}
	p := &path{latency: c.config.Network.Latency}
	for len(from.paths) <= to.number {
		from.paths = append(from.paths, nil)
	}
	from.paths[to.number] = p
	if from == to {
		p.latency = c.config.Network.LocalLatency
		return p
	}
	rate := 0.0
	for _, pair := range c.config.Network.Pairs {
		if direction(pair.Between, from, to) >= 0 {
			p.latency, rate = pair.Latency, pair.BytesPerSecond
		}
	}
	if rate > 0 {
		p.lines = append(p.lines, &line{bytesPerSecond: rate})
	}
	for _, l := range c.links {
		if d := direction(l.Between, from, to); d >= 0 {
			p.lines = append(p.lines, &l.lines[d])
		}
	}
	p.lines = append(p.lines, &to.in)
	return p
}

// direction is 0 if a message goes from the first group to the second, 1 if back, -1 if neither.
func direction(between [2]Hosts, from, to *host) int {
	in := func(i int, h *host) bool {
		if len(between[i]) > 0 {
			return slices.Contains(between[i], h.name)
		}
		return !slices.Contains(between[1-i], h.name)
	}
	switch {
	case in(0, from) && in(1, to):
		return 0
	case in(1, from) && in(0, to):
		return 1
	}
	return -1
}
