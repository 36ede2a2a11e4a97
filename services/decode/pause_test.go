package decode_test

import (
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// gaps counts the tokens that came later than one step after the token before, by
// whether the stream said why.
type gaps struct{ said, silent int }

// read reads the stream to its end and counts its gaps.
func (g *gaps) read(a *answer) {
	a.t.Helper()
	last, paused := time.Time{}, false
	for {
		event, err := a.stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.t.Errorf("ended with %v", err)
			}
			return
		}
		switch event.GetEvent().(type) {
		case *workerv1.DecodeEvent_Paused:
			paused = true
		case *workerv1.DecodeEvent_Resumed:
			if !paused {
				a.t.Error("resumed and was not paused")
			}
		case *workerv1.DecodeEvent_Tokens:
			now := time.Now()
			switch {
			case last.IsZero() || now.Sub(last) <= stepTime:
			case paused:
				g.said++
			default:
				g.silent++
			}
			last, paused = now, false
			a.tokens = append(a.tokens, event.GetTokens().GetTokenIds()...)
		case *workerv1.DecodeEvent_Ended:
			a.ended = event.GetEnded()
		}
	}
}

// A sequence that has to wait for others after it ran says so on its stream, unless
// the router does not ask.
func TestWaitsForOthersAreSaid(t *testing.T) {
	for _, asked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			var sum gaps
			for round := range 6 {
				// A mistake makes the worker expect all that a sequence may generate, until some
				// have generated less.
				for seed := range 40 {
					tokens := prompt(4, seed)
					early := task(tokens, 150)
					early.StopTokenIds = reference(t, tokens, 1)
					g.call(t.Context(), &workerv1.DecodeRequest{Task: early, PrefillHere: true}).rest()
				}
				g.idle()
				var answers [maxWaiting]*answer
				var all [maxWaiting]gaps
				var reading sync.WaitGroup
				outputs := func(i int) int { return 40 + (37*i+23*round)%60 }
				for i := range answers {
					answers[i] = g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(10+i, 50+i), uint32(outputs(i))), PrefillHere: true, Pauses: asked})
					synctest.Wait() // the order is that of the calls
					reading.Go(func() { all[i].read(answers[i]) })
				}
				reading.Wait()
				for i, a := range answers {
					sum.said, sum.silent = sum.said+all[i].said, sum.silent+all[i].silent
					a.checkTokens("after pauses", prompt(10+i, 50+i), 0, outputs(i), length)
				}
			}
			if asked && (sum.said == 0 || sum.silent > 0) || !asked && (sum.said > 0 || sum.silent == 0) {
				t.Errorf("asked %v: %+v", asked, sum)
			}
			g.idle()
		})
	}
}
