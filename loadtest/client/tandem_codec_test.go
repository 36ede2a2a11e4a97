package client_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/loadtest/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// unpacked is a valid event: a TokenDelta with unpacked ids and an unknown field, before
// the offset.
func unpacked() []byte {
	var delta []byte
	for _, id := range []uint64{7, 300, 1 << 31} {
		delta = protowire.AppendTag(delta, 1, protowire.VarintType)
		delta = protowire.AppendVarint(delta, id)
	}
	delta = protowire.AppendTag(delta, 99, protowire.Fixed32Type)
	delta = protowire.AppendFixed32(delta, 1)
	delta = protowire.AppendTag(delta, 2, protowire.BytesType)
	delta = protowire.AppendString(delta, "x")
	b := protowire.AppendTag(nil, 3, protowire.BytesType)
	b = protowire.AppendBytes(b, delta)
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	return protowire.AppendVarint(b, 5)
}

// The fast decoder agrees with protobuf on valid input, and otherwise at most returns an
// error.
func FuzzDecodeEvent(f *testing.F) {
	for _, e := range []*inferencev1.GenerateEvent{accepted(), tokens(0, "a", 1), tokens(9, "", 1, 2, 1<<31), tokens(3, "text"), finished(), {}} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add(unpacked())
	f.Add(append(unpacked(), unpacked()...)) // two parts of one message are merged
	f.Fuzz(func(t *testing.T, b []byte) {
		var want inferencev1.GenerateEvent
		refused := proto.Unmarshal(b, &want)
		for _, pieces := range []int{1, 3} {
			count, ids, text, err := client.DecodeEvent(b, true, pieces)
			if refused != nil {
				continue // it may look at less
			}
			wantText := want.GetTokens().GetText() + want.GetFinished().GetText()
			if err != nil || count != len(want.GetTokens().GetTokenIds()) || !slices.Equal(ids, want.GetTokens().GetTokenIds()) || text != wantText {
				t.Fatalf("%d tokens %v, text %q, %v; want %v", count, ids, text, err, &want)
			}
			if count2, ids2, text2, err := client.DecodeEvent(b, false, pieces); err != nil || count2 != count || len(ids2) > 0 || text2 != "" {
				t.Fatalf("not kept: %d tokens %v, text %q, %v", count2, ids2, text2, err)
			}
		}
	})
}
