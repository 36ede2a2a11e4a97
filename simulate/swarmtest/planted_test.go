package swarmtest

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFindsWhatIsPlanted: what clients may not see is found, and shrunk to the request and the
// fault that show it.
func TestFindsWhatIsPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
	for name, plant := range map[string]func(s *Script, request int, a *answer){
		"tokens do not depend on what happens": func(s *Script, _ int, a *answer) {
			// The last token of a long answer differs if a worker was drained.
			if n := len(a.tokens); n > 5 && slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == drain }) {
				a.tokens[n-1]++
			}
		},
		"answers have the length asked for": func(_ *Script, _ int, a *answer) {
			if n := len(a.tokens); n > 3 && a.err == nil {
				a.tokens = a.tokens[:n-1]
			}
		},
		"every request ends": func(s *Script, i int, a *answer) { a.ended = s.Requests[i].Priority == 0 },
		"requests fail for a reason": func(_ *Script, i int, a *answer) {
			if i == 2 { // as if the router had forgotten it
				a.tokens, a.err = nil, status.Error(codes.DeadlineExceeded, "planted")
			}
		},
		"nothing panics": func(_ *Script, i int, _ *answer) {
			if i == 1 {
				panic("planted")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fails := func(s *Script) bool {
				r, err := run(s, func(i int, a *answer) { plant(s, i, a) })
				return err == nil && r.Violation != nil && r.Violation.Invariant == name
			}
			seed := uint64(0)
			for ; seed < 100 && !fails(Generate(seed)); seed++ {
			}
			s := Generate(seed)
			if !fails(s) {
				t.Fatal("not found by 100 seeds")
			}
			small := Shrink(s, 300, fails)
			if !fails(small) {
				t.Fatal("the shrunk script does not fail")
			}
			if len(small.Requests) > 3 || len(small.Faults) > 1 || len(small.Workers) > 2 {
				t.Errorf("shrunk to %s", small.JSON())
			}
		})
	}
}
