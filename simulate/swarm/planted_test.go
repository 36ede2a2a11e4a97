package swarm

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFindsWhatIsPlanted: what clients may not see is found, and shrunk to the request and the
// fault that show it.
func TestFindsWhatIsPlanted(t *testing.T) {
	for name, plant := range map[string]func(s *Script, answers []answer){
		"tokens do not depend on what happens": func(s *Script, answers []answer) {
			// The last token of a long answer differs if a worker was drained.
			if slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == drain }) {
				for i := range answers {
					if n := len(answers[i].tokens); n > 5 {
						answers[i].tokens[n-1]++
					}
				}
			}
		},
		"answers have the length asked for": func(_ *Script, answers []answer) {
			for i := range answers {
				if n := len(answers[i].tokens); n > 3 && answers[i].err == nil {
					answers[i].tokens = answers[i].tokens[:n-1]
				}
			}
		},
		"every request ends": func(s *Script, answers []answer) {
			for i := range answers {
				answers[i].ended = s.Requests[i].Priority == 0
			}
		},
		"requests fail for a reason": func(_ *Script, answers []answer) {
			if len(answers) > 2 {
				answers[2].err = status.Error(codes.Internal, "planted")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fails := func(s *Script) bool {
				r, err := run(s, func(answers []answer) { plant(s, answers) })
				return err == nil && r.Violation != nil && r.Violation.Invariant == name
			}
			seed := uint64(0)
			for ; seed < 100 && !fails(Generate(seed)); seed++ {
			}
			s := Generate(seed)
			if !fails(s) {
				t.Fatal("not found by 100 seeds")
			}
			small := Shrink(s, 1000, fails)
			if !fails(small) {
				t.Fatal("the shrunk script does not fail")
			}
			if len(small.Requests) > 3 || len(small.Faults) > 1 || len(small.Workers) > 2 {
				t.Errorf("shrunk to %s", small.JSON())
			}
		})
	}
}
