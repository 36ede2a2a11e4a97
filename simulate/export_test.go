package simulate

import "time"

// Send is a message that a host sends to another.
type Send struct {
	From, To string
	Bytes    int
}

// Arrivals is when messages arrive that are sent at once, in that order.
func Arrivals(n Network, sends ...Send) []time.Duration {
	c := &Cluster{config: Config{Network: n}, clock: clock{now: epoch}, hosts: make(map[string]*host)}
	for _, l := range n.Links {
		c.links = append(c.links, newLink(l))
	}
	pipes := make(map[[2]string]*pipe)
	arrived := make([]time.Duration, len(sends))
	for i, s := range sends {
		between := [2]string{s.From, s.To}
		if pipes[between] == nil {
			pipes[between] = c.newPipe(c.host(s.From), c.host(s.To))
		}
		pipes[between].send(s.Bytes, func() { arrived[i] = c.now.Sub(epoch) })
	}
	for c.step(int64(time.Hour)) {
	}
	return arrived
}

// Processes counts the processes of each worker that are alive.
func Processes(c *Cluster) map[string]int {
	alive := make(map[string]int)
	for ref, p := range c.epochs {
		if !p.dead {
			alive[ref.ID]++
		}
	}
	return alive
}
