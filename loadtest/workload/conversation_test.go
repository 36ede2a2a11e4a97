package workload_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// answerTo is the server's answer: ids, text, or both.
func answerTo(q *workload.Request, ids, text bool) workload.Answer {
	var a workload.Answer
	if ids {
		a.TokenIDs = slices.Repeat([]uint32{7}, q.MaxTokens)
	}
	if text {
		a.Text = strings.Repeat("word", q.MaxTokens)
	}
	return a
}

// Each prompt is the previous one, its answer, and as many new tokens as requested.
func TestConversationOfIDs(t *testing.T) {
	source := sourceOf(t, server, "--turns=5", "--prompt-tokens=uniform:10-50", "--output-tokens=20", "--shared-prefix-tokens=30", "--think=uniform:1s-2s", "--priority=4")
	for session, q := range take(t, source, 20) {
		for turn := 0; ; turn++ {
			if q.Session != session || q.Turn != turn || q.MaxTokens != 20 || q.Priority != 4 {
				t.Fatalf("session %d, turn %d: %+v", session, turn, q)
			}
			if q.Then == nil {
				if turn != 4 {
					t.Fatalf("the conversation ended after turn %d", turn)
				}
				break
			}
			answer := answerTo(q, true, false)
			next, think := q.Then(answer)
			sofar := slices.Concat(q.Prompt.TokenIDs, answer.TokenIDs)
			if added := len(next.Prompt.TokenIDs) - len(sofar); added < 10 || added > 50 || !slices.Equal(sofar, next.Prompt.TokenIDs[:len(sofar)]) {
				t.Fatalf("turn %d adds %d tokens", turn+1, added)
			}
			if said, before := next.Prompt.TokenIDs[len(sofar):], q.Prompt.TokenIDs[len(q.Prompt.TokenIDs)-10:]; slices.Equal(said[:10], before) || slices.Equal(said[len(said)-10:], before) || slices.Equal(said[:10], next.Prompt.TokenIDs[30:40]) {
				t.Fatalf("turn %d says what was said before", turn+1)
			}
			if think < time.Second || think > 2*time.Second || next.Seed == q.Seed {
				t.Fatalf("turn %d: %v to think, seed %d after %d", turn+1, think, next.Seed, q.Seed)
			}
			q = next
		}
	}
}

func TestConversationOfText(t *testing.T) {
	q := take(t, sourceOf(t, server, "--prompt-kind=text", "--turns=3", "--prompt-tokens=10", "--output-tokens=5", "--shared-prefix-tokens=8"), 1)[0]
	answer := answerTo(q, false, true)
	next, think := q.Then(answer)
	if think != 0 || len(next.Prompt.Chat) != 4 || !strings.HasPrefix(next.Prompt.Text, q.Prompt.Text+answer.Text+"\n\n") {
		t.Fatalf("after %v: %+v", think, next.Prompt)
	}
	want := append(slices.Clone(q.Prompt.Chat), workload.Message{Role: "assistant", Content: answer.Text}, workload.Message{Role: "user", Content: next.Prompt.Text[len(q.Prompt.Text)+len(answer.Text)+2:]})
	if diff := cmp.Diff(want, next.Prompt.Chat); diff != "" {
		t.Errorf("chat, -want +got:\n%s", diff)
	}
	if last, _ := next.Then(answerTo(next, true, true)); last == nil || len(last.Prompt.Chat) != 6 || last.Then != nil {
		t.Errorf("the third turn: %+v", last)
	}
}

// A conversation ends when its next turn would not fit, and after an answer without text.
func TestConversationEnds(t *testing.T) {
	params := server
	params.ContextTokens = 85
	source := sourceOf(t, params, "--turns=50", "--prompt-tokens=20", "--output-tokens=10")
	q := take(t, source, 1)[0]
	turns := 1
	for {
		if len(q.Prompt.TokenIDs)+q.MaxTokens > 85 {
			t.Fatalf("turn %d has %d tokens", q.Turn, len(q.Prompt.TokenIDs))
		}
		next, _ := q.Then(answerTo(q, true, false))
		if next == nil {
			break
		}
		q = next
		turns++
	}
	if turns != 2 { // 20+10, 30+20+10; the third has 60+20 and no room for 10
		t.Errorf("%d turns, want 2", turns)
	}
	for _, q := range take(t, source, 2) {
		if next, _ := q.Then(workload.Answer{}); next != nil {
			t.Error("a turn follows an answer without text")
		}
	}
	want := []workload.Warning{
		{Count: 1, Text: "conversations ended early: the next turn would not have fitted the context of 85 tokens"},
		{Count: 2, Text: "conversations ended early: the answer had no text"},
	}
	if warner, ok := source.(workload.Warner); !ok || !slices.Equal(warner.Warnings(), want) {
		t.Errorf("want the warnings %v", want)
	}
}

// If a server accepts ids but answers in text, random ids of the answer's length stand in
// for it.
func TestConversationWithoutIDs(t *testing.T) {
	for exact, want := range map[string]int{"--exact": 20, "--exact=false": 5} {
		source := sourceOf(t, server, "--turns=2", "--prompt-tokens=10", "--output-tokens=20", exact)
		q := take(t, source, 1)[0]
		next, _ := q.Then(workload.Answer{Text: "twenty bytes of text"})
		if got := len(next.Prompt.TokenIDs); got != 10+want+10 || !slices.Equal(next.Prompt.TokenIDs[:10], q.Prompt.TokenIDs) {
			t.Errorf("%s: the second prompt has %d tokens", exact, got)
		}
		if warner, ok := source.(workload.Warner); !ok || len(warner.Warnings()) != 1 {
			t.Errorf("%s: no warning", exact)
		}
	}
}

// Then may be called from any goroutine in any order, with the same result.
func TestConversationsAtOnce(t *testing.T) {
	args := []string{"--turns=uniform:2-4", "--prompt-tokens=uniform:5-50", "--output-tokens=exp:9", "--think=exp:1s", "--seed=8"}
	type turn struct {
		Request *workload.Request
		Think   time.Duration
	}
	talk := func(q *workload.Request) []turn {
		turns := []turn{{Request: q}}
		for q.Then != nil {
			next, think := q.Then(answerTo(q, true, false))
			turns = append(turns, turn{next, think})
			q = next
		}
		return turns
	}
	var want [][]turn
	for _, q := range take(t, sourceOf(t, server, args...), 50) {
		want = append(want, talk(q))
	}
	got := make([][]turn, 50)
	var wait sync.WaitGroup
	for i, q := range take(t, sourceOf(t, server, args...), 50) {
		wait.Go(func() { got[i] = talk(q) })
	}
	wait.Wait()
	if diff := cmp.Diff(want, got, sameButThen); diff != "" {
		t.Error(diff)
	}
}
