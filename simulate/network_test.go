package simulate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/simulate"
)

func TestNetwork(t *testing.T) {
	const ms = time.Millisecond
	send := func(from, to string, bytes int) simulate.Send {
		return simulate.Send{From: from, To: to, Bytes: bytes}
	}
	slow := []simulate.Pair{{Between: [2]simulate.Hosts{{"a"}, {"c"}}, BytesPerSecond: 1e6}}
	rack := []simulate.Link{{Between: [2]simulate.Hosts{{"a", "b"}, {"c", "d"}}, BytesPerSecond: 1e6}}
	for _, test := range []struct {
		name    string
		network simulate.Network
		sends   []simulate.Send
		want    []time.Duration
	}{
		{"no limits", simulate.Network{Latency: ms}, []simulate.Send{send("a", "b", 1e9), send("a", "b", 1)}, []time.Duration{ms, ms}},
		{"within a host", simulate.Network{LocalLatency: ms, BytesPerSecond: 1}, []simulate.Send{send("a", "a", 1e9)}, []time.Duration{ms}},
		{"a stream of bytes passes all lines at once", simulate.Network{BytesPerSecond: 1e6}, []simulate.Send{send("a", "b", 1e4)}, []time.Duration{10 * ms}},
		{"one way out", simulate.Network{BytesPerSecond: 1e6}, []simulate.Send{send("a", "b", 1e4), send("a", "c", 1e4)}, []time.Duration{10 * ms, 20 * ms}},
		{"one way in", simulate.Network{BytesPerSecond: 1e6}, []simulate.Send{send("a", "c", 1e4), send("b", "c", 1e4)}, []time.Duration{10 * ms, 20 * ms}},
		{"both directions", simulate.Network{BytesPerSecond: 1e6}, []simulate.Send{send("a", "b", 1e4), send("b", "a", 1e4)}, []time.Duration{10 * ms, 10 * ms}},
		{"a shared link", simulate.Network{BytesPerSecond: 1e9, Links: rack}, []simulate.Send{send("a", "c", 1e4), send("b", "d", 1e4), send("c", "a", 1e4)}, []time.Duration{10 * ms, 20 * ms, 10 * ms}},
		// 4 MB need 4 s from a to c; c is free for others meanwhile.
		{"a slow pair holds up nobody else", simulate.Network{BytesPerSecond: 1e9, Pairs: slow}, []simulate.Send{send("a", "c", 4e6), send("a", "c", 1e6), send("b", "c", 1e6)}, []time.Duration{4000 * ms, 5000 * ms, 5 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := simulate.Arrivals(test.network, test.sends...); !slices.Equal(got, test.want) {
				t.Errorf("arrive at %v, want %v", got, test.want)
			}
		})
	}
}
