package protocolmodeltest_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// history is an instructive history, or one that broke a state machine. Failures print
// their history in this form.
type history struct {
	name   string
	events []event
	// commits: all of its transfers commit.
	commits bool
}

// begun is an established session with so many stripes and an accepted transfer of two
// blocks, none held.
func begun(stripes int) []event {
	events := []event{start{}, connect{stripes: stripes}}
	for i := range stripes {
		events = append(events, up{0, i}, down{0, i})
	}
	return append(events, reserve{blocks: []kvcache.BlockID{0, 1}}, open{session: 0, id: 1},
		write{0, 0}, up{0, 0}, down{0, 0})
}

func after(begin []event, events ...event) []event { return append(begin, events...) }

// Bits of the messages below. A chunk of one run of two blocks has 23 bytes before its
// payload; byte 14 is the layer, byte 18 the first block.
const (
	bitOfLayer      = 14 * 8
	bitOfFirstBlock = 18 * 8
	bitOfPayload    = 23 * 8
)

var histories = []history{
	{
		name: "the commit of the first stripe overtakes a chunk of the second",
		events: after(begun(2),
			commit{session: 0, id: 1},
			write{0, 1}, ship{session: 0, stripe: 1}, // layer 0
			write{0, 0}, ship{session: 0, stripe: 0}, // layer 1
			write{0, 0}, ship{session: 0, stripe: 0}, // layer 2
			write{0, 0}, write{0, 1}, // Commit
			up{0, 0}, up{0, 0}, up{0, 0}, land{}, land{},
			up{0, 1}, up{0, 1}, land{},
			quiesce{}),
		commits: true,
	},
	{
		name: "all commits overtake a copy",
		events: after(begun(1),
			commit{session: 0, id: 1},
			write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0},
			up{0, 0}, up{0, 0}, up{0, 0}, up{0, 0},
			land{2, false}, land{0, false}, land{0, false},
			quiesce{}),
		commits: true,
	},
	{
		name: "an abort overtakes a copy, and others want the blocks",
		events: after(begun(1),
			offer{id: 1, layer: 0, count: 2}, write{0, 0}, ship{}, read{0, 0}, up{0, 0},
			abort{id: 1}, write{0, 0}, up{0, 0},
			land{},
			reserve{blocks: []kvcache.BlockID{0, 1}},
			quiesce{}),
	},
	{
		name: "the end of the streams overtakes a write into mapped pages, and others want the blocks",
		events: []event{
			start{views: true, shares: true}, connect{stripes: 1}, up{0, 0}, down{0, 0},
			reserve{blocks: []kvcache.BlockID{0, 1}}, attach{id: 1}, open{id: 1, shared: true}, write{0, 0}, up{0, 0}, down{0, 0},
			offer{id: 1, layer: 0, count: 2}, write{0, 0},
			cut{0, 0}, receiverHears{0, 0}, senderHears{0},
			ship{}, read{0, 0}, unmap{0}, hearUnmap{0},
			reserve{blocks: []kvcache.BlockID{0, 1}},
			quiesce{},
		},
	},
	{
		name: "the end of a stream overtakes a copy, and others want the blocks",
		events: after(begun(1),
			offer{id: 1, layer: 0, count: 2}, write{0, 0}, ship{}, read{0, 0}, up{0, 0},
			cut{0, 0}, receiverHears{0, 0},
			land{},
			reserve{blocks: []kvcache.BlockID{0, 1}},
			quiesce{}),
	},
	{
		name: "the abort of the first stripe overtakes a chunk of the second",
		events: after(begun(2),
			offer{id: 1, layer: 0, count: 2}, write{0, 1}, ship{session: 0, stripe: 1}, read{0, 1},
			abort{id: 1}, write{0, 0}, write{0, 1},
			up{0, 0}, up{0, 1}, up{0, 1}, down{0, 0},
			quiesce{}),
	},
	{
		name: "an abort crosses the accept",
		events: []event{
			start{}, connect{stripes: 2}, up{0, 0}, up{0, 1}, down{0, 0}, down{0, 1},
			reserve{blocks: []kvcache.BlockID{0, 1}}, open{session: 0, id: 1}, write{0, 0},
			abort{id: 1}, write{0, 0}, up{0, 0}, down{0, 0}, up{0, 0}, write{0, 1}, up{0, 1}, down{0, 0},
			quiesce{},
		},
	},
	{
		name: "an abort crosses the committed",
		events: after(begun(1),
			commit{session: 0, id: 1},
			write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0},
			up{0, 0}, land{}, up{0, 0}, land{}, up{0, 0}, land{}, up{0, 0},
			abort{id: 1}, write{0, 0}, up{0, 0},
			quiesce{}),
		commits: true,
	},
	{
		name: "a cancel crosses the commit",
		events: after(begun(1),
			commit{session: 0, id: 1},
			write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0}, ship{}, write{0, 0},
			up{0, 0}, cancel{1}, up{0, 0}, up{0, 0}, up{0, 0}, down{0, 0}, land{},
			quiesce{}),
	},
	{
		name: "a ticket of another start",
		events: after(begun(1),
			start{}, connect{stripes: 1}, up{1, 0}, down{1, 0},
			reserve{blocks: []kvcache.BlockID{0}}, open{session: 1, id: 2, forged: oldEpoch}, write{1, 0},
			up{1, 0}, down{1, 0},
			quiesce{}),
	},
	{
		name: "a ticket with another secret, and then the right one",
		events: []event{
			start{}, connect{stripes: 1}, up{0, 0}, down{0, 0}, connect{stripes: 1}, up{1, 0}, down{1, 0},
			reserve{blocks: []kvcache.BlockID{0, 1}}, open{session: 0, id: 1, forged: wrongSecret}, write{0, 0}, up{0, 0}, down{0, 0},
			open{session: 1, id: 1, again: true}, write{1, 0}, up{1, 0}, down{1, 0},
			quiesce{},
		},
	},
	{
		name: "nobody is heard once a copy has ended",
		events: after(begun(2),
			offer{id: 1, layer: 0, count: 2}, write{0, 1}, ship{session: 0, stripe: 1}, up{0, 1},
			advance{lease}, land{},
			blackout{}),
	},
	{
		name: "a bit flips in a payload, of which nothing but its sum would tell",
		events: after(begun(1),
			offer{id: 1, layer: 0, count: 2}, write{0, 0}, ship{},
			flip{bit: bitOfPayload}, up{0, 0}, land{},
			quiesce{}),
	},
	{
		name: "a bit flips in a payload that goes straight into pages",
		events: after(append([]event{start{views: true}}, begun(1)[1:]...),
			offer{id: 1, layer: 0, count: 2}, write{0, 0}, ship{},
			flip{bit: bitOfPayload}, up{0, 0}, land{},
			quiesce{}),
	},
	{
		name: "two chunks change their blocks, of which nothing but their sums would tell",
		events: after(begun(1),
			offer{id: 1, layer: 0, count: 1}, write{0, 0}, ship{},
			offer{id: 1, layer: 0, count: 1}, write{0, 0}, ship{},
			flip{message: 0, bit: bitOfFirstBlock}, flip{message: 1, bit: bitOfFirstBlock},
			up{0, 0}, land{}, up{0, 0},
			quiesce{}),
	},
	{
		name: "two chunks change their layers, of which nothing but their sums would tell",
		events: after(begun(1),
			offer{id: 1, layer: 0, count: 2}, write{0, 0}, ship{},
			offer{id: 1, layer: 1, count: 2}, write{0, 0}, ship{},
			flip{message: 0, bit: bitOfLayer}, flip{message: 1, bit: bitOfLayer},
			up{0, 0}, land{}, up{0, 0},
			quiesce{}),
	},
}

// Histories that once broke a state machine pass.
func TestHistories(t *testing.T) {
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			w := newWorld(t)
			w.healthy = h.commits
			for _, e := range h.events {
				w.do(e)
			}
			if h.commits {
				w.checkAllCommitted()
			}
		})
	}
}
