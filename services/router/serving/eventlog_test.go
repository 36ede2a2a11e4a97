package serving_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// A reader that waits is handed tokens at once, as long as it can send them; all others come
// from the log, in order and each once.
func TestTokensAreHandedToAReaderThatWaits(t *testing.T) {
	var sent []int
	ready := true
	l, err := serving.NewLog(false, func(event *inferencev1.GenerateEvent) bool {
		if ready {
			sent = append(sent, int(event.GetOffset()))
		}
		return ready
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("kept before the reader came", l.Append(0), true)
	check("read", l.Read(), 0)
	check("kept while the reader sends", l.Append(1), true)
	check("read", l.Read(), 1)
	check("read", l.Read(), -1)
	check("kept while the reader waits", l.Append(2), false)
	check("kept while the reader waits", l.Append(3), false)
	check("roused", l.Roused(), false)
	ready = false
	check("kept while it cannot send", l.Append(4), true)
	check("roused", l.Roused(), true)
	ready = true
	check("kept behind another", l.Append(5), true)
	check("read", l.Read(), 4)
	check("kept while the reader sends", l.Append(6), true)
	check("read", l.Read(), 5)
	check("read", l.Read(), 6)
	check("read", l.Read(), -1)
	check("kept while the reader waits", l.Append(7), false)
	check("bytes", l.Bytes(), int64(0))
	l.Leave()
	check("kept once it has left", l.Append(8), true)
	if !slices.Equal(sent, []int{2, 3, 7}) {
		t.Errorf("sent %v", sent)
	}
}

// Who may come back has to find everything.
func TestNothingOfAResumableRequestIsHandedOut(t *testing.T) {
	l, err := serving.NewLog(true, func(*inferencev1.GenerateEvent) bool {
		t.Error("a token was handed out")
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if offset := l.Read(); offset != -1 {
			t.Errorf("read %d", offset)
		}
		if !l.Append(i) || !l.Roused() {
			t.Errorf("token %d is not kept, or its reader sleeps on", i)
		}
		if offset := l.Read(); offset != i {
			t.Errorf("read %d, want %d", offset, i)
		}
	}
}

func TestTokensThatAreHandedOutAllocateNothing(t *testing.T) {
	l, err := serving.NewLog(false, func(*inferencev1.GenerateEvent) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Read()
	event := &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{}}}
	if n := testing.AllocsPerRun(1000, func() { l.AppendEvent(event) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What prompts' log probabilities take is counted as that of tokens is.
func TestLogprobsOfPromptsAreCounted(t *testing.T) {
	some := make([]*inferencev1.TokenLogprobs, 256)
	for i := range some {
		some[i] = &inferencev1.TokenLogprobs{Top: make([]*inferencev1.TokenLogprob, 20)}
	}
	var bytes []int64
	for _, event := range []*inferencev1.GenerateEvent{
		{Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{Logprobs: some}}},
		{Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: &inferencev1.PromptLogprobs{Logprobs: some}}},
	} {
		l, err := serving.NewLog(false, func(*inferencev1.GenerateEvent) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		l.AppendEvent(event)
		bytes = append(bytes, l.Bytes())
	}
	if bytes[0] != bytes[1] || bytes[0] < 256*20*100 {
		t.Errorf("of tokens %d bytes, of a prompt %d", bytes[0], bytes[1])
	}
}

// A reader that sees that the log was cut off before the request does ends the request with that.
func TestACutEndsTheRequestWithItsStatus(t *testing.T) {
	l, err := serving.NewLog(false, nil)
	if err != nil {
		t.Fatal(err)
	}
	unread := errors.New("unread")
	if err := l.Follow(unread, func(*inferencev1.GenerateEvent) error { return nil }); !errors.Is(err, unread) {
		t.Errorf("ended with %v", err)
	}
}

// A panic of who sends ends the request: nobody else reads it.
func TestAPanicOfSendEndsTheRequest(t *testing.T) {
	l, err := serving.NewLog(false, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Append(0)
	if err := l.Follow(nil, func(*inferencev1.GenerateEvent) error { panic("send") }); err == nil {
		t.Error("the request goes on")
	}
}

// An event that is larger than a log may be is read like others: nobody could have read it before.
func TestASingleLargeEventIsKept(t *testing.T) {
	l, err := serving.NewLog(false, nil)
	if err != nil {
		t.Fatal(err)
	}
	some := make([]*inferencev1.TokenLogprobs, 1<<14) // 2 MB, of the 1 MB that there may be
	l.AppendEvent(&inferencev1.GenerateEvent{Offset: 7, Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: &inferencev1.PromptLogprobs{Logprobs: some}}})
	if offset := l.Read(); offset != 7 {
		t.Errorf("read %d", offset)
	}
	l.AppendEvent(&inferencev1.GenerateEvent{Offset: 8, Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: &inferencev1.PromptLogprobs{Logprobs: some}}})
	l.AppendEvent(&inferencev1.GenerateEvent{Offset: 9})
	if offset := l.Read(); offset != -1 {
		t.Errorf("read %d of a log with two, which is cut off", offset)
	}
}

// While a log hands over a token, which may take a while, others are cut off.
func TestALogThatHandsOverKeepsNoOtherFromBeingCut(t *testing.T) {
	var other *serving.Log
	l, err := serving.NewLog(false, func(*inferencev1.GenerateEvent) bool {
		other.AppendEvent(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{Text: strings.Repeat("x", 17<<20)}}})
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	other = l.Beside(nil)
	if l.Read() != -1 || l.Append(0) {
		t.Error("the token is not handed over")
	}
	if other.Bytes() != 0 {
		t.Errorf("the other log has %d bytes", other.Bytes())
	}
}

// A tenant with many small logs has none of another's cut off, though that is larger than each.
func TestTheLargestLogOfTheLargestTenantIsCutOff(t *testing.T) {
	l, err := serving.NewLog(false, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(tenant string, kib int) *serving.Log {
		log := l.Of(tenant)
		log.AppendEvent(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{Text: strings.Repeat("x", kib<<10)}}})
		return log
	}
	other := fill("other", 1000)
	var many []*serving.Log
	for i := range 20 {
		many = append(many, fill("many", 900+i))
	}
	cut := 0
	for _, log := range many {
		if log.Bytes() == 0 {
			cut++
		}
	}
	if other.Bytes() == 0 || cut == 0 || cut > 4 {
		t.Errorf("the other tenant's log has %d bytes, and %d of the many were cut off", other.Bytes(), cut)
	}
}

// A reader that takes one event after the other, each just in time, is cut off in the end.
func TestAnswersAreReadInTheEnd(t *testing.T) {
	for each, want := range map[time.Duration]string{20 * time.Second: api.ReasonNotRead, 2 * time.Second: ""} {
		synctest.Test(t, func(t *testing.T) {
			l, err := serving.NewLog(true, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 100 {
				l.Append(i)
			}
			why := l.Follow(nil, func(*inferencev1.GenerateEvent) error {
				time.Sleep(each)
				return nil
			})
			if rpc.Reason(why) != want {
				t.Errorf("with %s an event: %v", each, why)
			}
		})
	}
}
