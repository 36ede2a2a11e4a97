package serving_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/services/router/serving"
)

func tokens(offset uint32, ids ...uint32) *workerv1.DecodeEvent {
	return &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{Offset: offset, TokenIds: ids}}}
}

func encoded(t testing.TB, event *workerv1.DecodeEvent) []byte {
	t.Helper()
	data, err := proto.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecodeEvents(t *testing.T) {
	likely := tokens(3, 4)
	likely.GetTokens().Logprobs = []*inferencev1.TokenLogprobs{{Logprob: -1}}
	for _, c := range []struct {
		event  *workerv1.DecodeEvent
		byHand bool
	}{
		{tokens(0, 0), true}, {tokens(1, 300, 5, 1<<32-1), true}, {tokens(1<<31, 7), true}, {tokens(4), false}, {likely, false}, {&workerv1.DecodeEvent{}, false},
		{&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{QueueNs: 5}}}, false},
		{&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{}}}, false},
	} {
		for _, keep := range []bool{false, true} {
			// Before and after it comes another, whose memory it must not show.
			messages := [][]byte{encoded(t, tokens(9, 8, 7, 6, 5)), encoded(t, c.event), encoded(t, tokens(10, 11))}
			number := 0
			if err := serving.ReadDecode(keep, messages, func(event *workerv1.DecodeEvent, byHand bool) {
				if number == 1 && (!proto.Equal(event, c.event) || byHand != (c.byHand && !keep)) {
					t.Errorf("%v, by hand %t, want %v", event, byHand, c.event)
				}
				number++
			}); err != nil {
				t.Error(err)
			}
		}
	}
}

// Whatever comes is what protobuf makes of it.
func FuzzDecodeEvents(f *testing.F) {
	f.Add(encoded(f, tokens(1, 2, 3)))
	f.Add(encoded(f, tokens(0, 0)))
	f.Add([]byte{0x1a, 0x02, 0x10, 0x05})             // a token that is not packed
	f.Add([]byte{0x1a, 0x04, 0x12, 0x02, 0x80, 0x80}) // cut off
	f.Add([]byte{0x1a, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		want := new(workerv1.DecodeEvent)
		wantErr := proto.Unmarshal(data, want)
		err := serving.ReadDecode(false, [][]byte{data}, func(event *workerv1.DecodeEvent, _ bool) {
			if !proto.Equal(event, want) {
				t.Errorf("%x: %v, want %v", data, event, want)
			}
		})
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%x: %v, want %v", data, err, wantErr)
		}
	})
}
