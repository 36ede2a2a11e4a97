package receiver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// sharing returns a core with two reservations, one of which names its sender, and a session of
// one stream of that sender.
func sharing(change ...func(*receiver.Config)) *receiver.Core {
	cfg := receiver.Config{
		WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: 2, SliceBytes: sliceBytes, Shares: true,
		Lease: lease, CreditBytes: 64, MaxChunkBytes: 16, MaxReservations: 3, MaxStreams: 2,
	}
	for _, c := range change {
		c(&cfg)
	}
	c := receiver.New(cfg)
	handle(c, start, receiver.Reserve{ID: transferID, Secret: secret, Blocks: blocks(), Held: 1, Sender: "prefill"})
	handle(c, start, receiver.Reserve{ID: 2, Secret: secret, Blocks: []kvcache.BlockID{20}})
	join(c, 1, lone(1))
	return c
}

// lone is the hello of the only stream of a session.
func lone(session uint64) *kvtransferv1.SenderMessage {
	return stripe(0, func(h *kvtransferv1.SenderHello) { h.Session, h.Stripes = session, 1 })
}

func openShared() *kvtransferv1.SenderMessage {
	m := open()
	m.GetOpen().Encoding = kvtransferv1.Encoding_ENCODING_SHARED
	return m
}

// why returns why a session may not map the pages; empty: it may.
func why(t *testing.T, actions []receiver.Action) string {
	t.Helper()
	for _, a := range actions {
		switch a := a.(type) {
		case receiver.MayMap:
			return ""
		case receiver.MayNotMap:
			if a.Why == "" {
				t.Error("refused without a reason")
			}
			return a.Why
		}
	}
	t.Fatalf("no answer in %+v", actions)
	return ""
}

func TestWhoMayMap(t *testing.T) {
	ask := receiver.Map{Stream: 1, ID: transferID, Secret: secret}
	for name, test := range map[string]struct {
		core *receiver.Core
		then func(c *receiver.Core)
		ask  receiver.Map
		want string
	}{
		"with a ticket":             {sharing(), nil, ask, ""},
		"with anybody's ticket":     {sharing(), nil, receiver.Map{Stream: 1, ID: 2, Secret: secret}, ""},
		"where nothing is shared":   {sharing(func(c *receiver.Config) { c.Shares = false }), nil, ask, "does not share"},
		"another secret":            {sharing(), nil, receiver.Map{Stream: 1, ID: transferID, Secret: secret + 1}, "ticket"},
		"no such ticket":            {sharing(), nil, receiver.Map{Stream: 1, ID: 9, Secret: secret}, "ticket"},
		"no such stream":            {sharing(), nil, receiver.Map{Stream: 7, ID: transferID, Secret: secret}, "session"},
		"a ticket that it has open": {sharing(), func(c *receiver.Core) { handle(c, start, received(1, open())) }, ask, ""},
		"another secret of that": {sharing(), func(c *receiver.Core) { handle(c, start, received(1, open())) },
			receiver.Map{Stream: 1, ID: transferID, Secret: secret + 1}, "ticket"},
		"a ticket that another session has open": {sharing(), func(c *receiver.Core) {
			handle(c, start, received(1, open()))
			join(c, 2, lone(6))
		}, receiver.Map{Stream: 2, ID: transferID, Secret: secret}, "ticket"},
		"twice":                     {sharing(), func(c *receiver.Core) { handle(c, start, ask) }, ask, "already"},
		"after the end":             {sharing(), func(c *receiver.Core) { handle(c, start, receiver.StreamClosed{Stream: 1}) }, ask, "session"},
		"during a shutdown":         {sharing(), func(c *receiver.Core) { handle(c, start, receiver.Shutdown{}) }, ask, "shuts down"},
		"before all stripes joined": {sharing(), func(c *receiver.Core) { join(c, 2, stripe(0)) }, receiver.Map{Stream: 2, ID: transferID, Secret: secret}, "session"},
		"another's ticket": {sharing(), func(c *receiver.Core) {
			join(c, 2, stripe(0, func(h *kvtransferv1.SenderHello) { h.Session, h.Stripes, h.Sender = 6, 1, "another" }))
		}, receiver.Map{Stream: 2, ID: transferID, Secret: secret}, "ticket"},
		"a verified sender with anybody's ticket": {sharing(), func(c *receiver.Core) {
			handle(c, start, receiver.StreamOpened{Stream: 2, Verified: true})
			handle(c, start, received(2, lone(6)))
		}, receiver.Map{Stream: 2, ID: 2, Secret: secret}, "ticket"},
		"too many": {sharing(), func(c *receiver.Core) {
			handle(c, start, ask)
			handle(c, start, receiver.StreamClosed{Stream: 1})
			join(c, 2, lone(6))
			handle(c, start, receiver.Map{Stream: 2, ID: 2, Secret: secret})
			handle(c, start, receiver.StreamClosed{Stream: 2})
			join(c, 3, lone(7))
		}, receiver.Map{Stream: 3, ID: 2, Secret: secret}, "2 sessions"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.then != nil {
				test.then(test.core)
			}
			got := why(t, handle(test.core, start, test.ask))
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func has[A receiver.Action](actions []receiver.Action) bool {
	return slices.ContainsFunc(actions, func(a receiver.Action) bool { _, is := a.(A); return is })
}

// accepted returns the Accept among actions, nil if there is none.
func accepted(actions []receiver.Action) *kvtransferv1.Accept {
	for _, a := range actions {
		if s, is := a.(receiver.Send); is && s.Message.GetAccept() != nil {
			return s.Message.GetAccept()
		}
	}
	return nil
}

// refused returns why a transfer is refused among actions.
func refused(actions []receiver.Action) kvtransferv1.RefuseReason {
	for _, a := range actions {
		if s, is := a.(receiver.Send); is && s.Message.GetRefuse() != nil {
			return s.Message.GetRefuse().GetReason()
		}
	}
	return 0
}

// Only a session that has mapped the pages may write there, and it is told where.
func TestSharedPagesOfATransfer(t *testing.T) {
	c := sharing()
	if m := accepted(handle(c, start, received(1, openShared()))); m != nil {
		t.Errorf("accepted without a mapping: %v", m)
	}
	handle(c, start, receiver.Map{Stream: 1, ID: transferID, Secret: secret})
	m := accepted(handle(c, start, received(1, openShared())))
	if !slices.Equal(m.GetPages(), []uint32{11, 12, 13, 14, 15}) || m.GetCrc32C() != wire.AcceptChecksum(m) {
		t.Errorf("accepted with %v", m)
	}
	large := sharing(func(cfg *receiver.Config) { cfg.MaxReservations = 9 })
	handle(large, start, receiver.Reserve{ID: 3, Secret: secret, Blocks: make([]kvcache.BlockID, receiver.MaxSharedBlocks+1)})
	handle(large, start, receiver.Map{Stream: 1, ID: 3, Secret: secret})
	huge := openShared()
	huge.GetOpen().TransferId = 3
	if m := accepted(handle(large, start, received(1, huge))); m != nil {
		t.Error("accepted with more pages than a message can name")
	}
}

// A transfer whose streams have ended is not drained before its sender has unmapped the pages,
// however long that takes. Meanwhile the sender gets no other mapping. One that acknowledged its
// end is drained at once, and so is one that was sent natively.
func TestMappingKeepsBlocks(t *testing.T) {
	mapped := func() *receiver.Core {
		c := sharing()
		handle(c, start, receiver.Map{Stream: 1, ID: transferID, Secret: secret})
		return c
	}
	c := mapped()
	handle(c, start, received(1, openShared()))
	actions := handle(c, start, receiver.StreamClosed{Stream: 1})
	if !has[receiver.Broken](actions) || has[receiver.Drained](actions) {
		t.Fatalf("after the end of the stream: %+v", actions)
	}
	later := start.Add(time.Hour)
	if actions = handle(c, later, receiver.Tick{}); slices.Contains(actions, receiver.Action(receiver.Drained{ID: transferID})) {
		t.Fatal("a timer frees blocks that can be written")
	}
	handle(c, later, receiver.Reserve{ID: 3, Secret: secret, Blocks: []kvcache.BlockID{30}})
	handle(c, later, receiver.StreamOpened{Stream: 2})
	handle(c, later, received(2, lone(6)))
	if got := why(t, handle(c, later, receiver.Map{Stream: 2, ID: 3, Secret: secret})); !strings.Contains(got, "quarantine") {
		t.Errorf("the sender may map the pages again: %q", got)
	}
	if s := c.Stats(); s.Ending != 1 || s.Mappings != 1 {
		t.Errorf("stats %+v", s)
	}
	if actions = handle(c, later, receiver.Unmapped{Stream: 1}); !has[receiver.Drained](actions) {
		t.Errorf("after the end of the mapping: %+v", actions)
	}
	if got := why(t, handle(c, later, receiver.Map{Stream: 2, ID: 3, Secret: secret})); got != "" {
		t.Errorf("the sender may not map the pages again: %q", got)
	}
	if actions = handle(c, later, receiver.Unmapped{Stream: 1}); len(actions) > 0 {
		t.Errorf("a second end: %+v", actions)
	}

	c = mapped()
	handle(c, start, received(1, openShared()))
	if actions = handle(c, start, received(1, abort())); !has[receiver.Drained](actions) {
		t.Errorf("after Abort: %+v", actions)
	}

	c = mapped()
	handle(c, start, received(1, open()))
	if actions = handle(c, start, receiver.StreamClosed{Stream: 1}); !has[receiver.Drained](actions) {
		t.Errorf("a native transfer waits for the mapping: %+v", actions)
	}

	// A mapping that ends first ends its session, if that has written there.
	c = mapped()
	handle(c, start, received(1, openShared()))
	actions = handle(c, start, receiver.Unmapped{Stream: 1})
	if streams, _ := closed(actions); !has[receiver.Broken](actions) || has[receiver.Drained](actions) || len(streams) != 1 {
		t.Errorf("after the end of the mapping: %+v", actions)
	}
	if actions = handle(c, start, receiver.StreamClosed{Stream: 1}); !has[receiver.Drained](actions) {
		t.Errorf("after the end of the stream, too: %+v", actions)
	}
}

// A sender that could not map the pages goes on over its streams, and may try again.
func TestMappingThatNobodyUsed(t *testing.T) {
	c := sharing()
	handle(c, start, receiver.Map{Stream: 1, ID: transferID, Secret: secret})
	handle(c, start, received(1, open()))
	if actions := handle(c, start, receiver.Unmapped{Stream: 1}); len(actions) > 0 {
		t.Errorf("after the end of the mapping: %+v", actions)
	}
	if s := c.Stats(); s.Mappings != 0 || s.Open != 1 || s.Streams != 1 {
		t.Errorf("stats %+v", s)
	}
	second := openShared()
	second.GetOpen().TransferId = 2
	if got := refused(handle(c, start, received(1, second))); got != kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING {
		t.Errorf("writing into pages that are not mapped is refused as %v", got)
	}
	if got := why(t, handle(c, start, receiver.Map{Stream: 1, ID: 2, Secret: secret})); got != "" {
		t.Errorf("the session may not map the pages again: %q", got)
	}
}
