package router_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router"
)

func tokenEvent(offset uint64, text string, ids ...uint32) *inferencev1.GenerateEvent {
	return &inferencev1.GenerateEvent{Offset: offset, Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{TokenIds: ids, Text: text}}}
}

// A token is sent in the very bytes that protobuf makes of it.
func TestEncodedTokens(t *testing.T) {
	for _, event := range []*inferencev1.GenerateEvent{
		tokenEvent(0, "", 0), tokenEvent(0, "a", 0), tokenEvent(1, "", 127), tokenEvent(127, " once", 128), tokenEvent(128, "é世界", 128_255),
		tokenEvent(math.MaxUint64, strings.Repeat("x", 127), math.MaxUint32), tokenEvent(5, strings.Repeat("x", 20_000), 7),
	} {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		got, size, is := router.EncodeToken(event)
		if !is || !bytes.Equal(got, want) || len(got) > size {
			t.Errorf("%v: %x, at most %d bytes, want %x", event, got, size, want)
		}
	}
	logprobs := tokenEvent(1, "a", 2)
	logprobs.GetTokens().Logprobs = []*inferencev1.TokenLogprobs{{}}
	for _, event := range []*inferencev1.GenerateEvent{
		logprobs, tokenEvent(1, "a"), tokenEvent(1, "a", 2, 3), {}, {Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{}}},
	} {
		if _, _, is := router.EncodeToken(event); is {
			t.Errorf("%v is taken for a token alone", event)
		}
	}
}
