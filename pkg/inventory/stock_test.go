package inventory_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/inventory"
)

// tokens of n blocks: the first are 1, 2, 3 and so on, the rest begins with seed.
func tokens(common, n int, seed int32) []int32 {
	made := make([]int32, 0, n*blockTokens)
	for i := range n {
		token := int32(i + 1)
		if i >= common {
			token = seed + int32(i)
		}
		made = append(made, token, token)
	}
	return made
}

// prefix is for a stock of poolBlocks, and for smaller ones.
func prefix(salt string, tokens []int32) inventory.Prefix {
	return inventory.NewPrefix(layout, poolBlocks, salt, tokens)
}

func TestOffers(t *testing.T) {
	type offer struct {
		tokens []int32
		want   inventory.Verdict
		held   int
		commit bool
	}
	for name, offers := range map[string][]offer{
		"what is held is not brought again": {
			{tokens(3, 3, 0), inventory.Taken, 0, true},
			{tokens(3, 3, 0), inventory.Held, 0, false},
			{tokens(2, 2, 0), inventory.Held, 0, false},
			{tokens(3, 5, 100), inventory.Taken, 3, true},
		},
		"what another brings is not brought twice": {
			{tokens(3, 3, 0), inventory.Taken, 0, false},
			{tokens(3, 3, 0), inventory.Arriving, 0, false},
			{tokens(2, 2, 0), inventory.Arriving, 0, false},
			{tokens(3, 4, 100), inventory.Arriving, 0, false},
			{tokens(0, 2, 100), inventory.Taken, 0, false},
		},
		"the only arrival may take all": {
			{tokens(0, poolBlocks, 0), inventory.Taken, 0, false},
			{tokens(0, 1, 100), inventory.Full, 0, false},
		},
		"several arrivals may take half": {
			{tokens(0, 3, 0), inventory.Taken, 0, false},
			{tokens(0, 4, 100), inventory.Full, 0, false},
			{tokens(0, 3, 100), inventory.Taken, 0, false},
			{tokens(0, 1, 200), inventory.Full, 0, false},
		},
		"more than there is never fits": {
			{tokens(0, poolBlocks, 0), inventory.Taken, 0, true},
			{tokens(0, 1000*poolBlocks, 0), inventory.TooLarge, 0, false},
			{tokens(0, poolBlocks+1, 0), inventory.TooLarge, 0, false},
		},
		"arrivals are bounded": {
			{tokens(0, 1, 100), inventory.Taken, 0, false},
			{tokens(0, 1, 200), inventory.Taken, 0, false},
			{tokens(0, 1, 300), inventory.Taken, 0, false},
			{tokens(0, 1, 400), inventory.Taken, 0, false},
			{tokens(0, 1, 500), inventory.Busy, 0, false},
		},
		"room is made of what was not used for longest": {
			{tokens(0, 6, 0), inventory.Taken, 0, true},
			{tokens(0, 6, 100), inventory.Taken, 0, true},
			{tokens(0, 6, 0), inventory.Held, 0, false},
			{tokens(0, 6, 200), inventory.Taken, 0, true},
			{tokens(0, 6, 0), inventory.Held, 0, false},
			{tokens(0, 6, 100), inventory.Taken, 0, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := inventory.New(poolBlocks, layout, inventory.Limits{Arrivals: mostAtATime, Readings: mostAtATime})
			for i, o := range offers {
				a, verdict := s.Offer(prefix("", o.tokens))
				if verdict != o.want || a.Held != o.held {
					t.Fatalf("offer %d: verdict %v with %d held, want %v with %d", i, verdict, a.Held, o.want, o.held)
				}
				if o.commit {
					s.Committed(a.ID)
				}
			}
		})
	}
}

func TestWhatIsReadStaysAndWhatMayBeWrittenIsNotGivenAway(t *testing.T) {
	s := inventory.New(4, layout, inventory.Limits{Arrivals: 4, Readings: 4})
	a, _ := s.Offer(prefix("", tokens(0, 2, 0)))
	s.Committed(a.ID)
	r, _, verdict := s.Read(prefix("", tokens(0, 2, 0)))
	if verdict != inventory.Taken {
		t.Fatalf("read: %v", verdict)
	}
	late, verdict := s.Offer(prefix("", tokens(0, 2, 100)))
	if verdict != inventory.Taken {
		t.Fatalf("offer into what is free: %v", verdict)
	}
	s.Failed(late.ID)
	if _, verdict = s.Offer(prefix("", tokens(0, 1, 200))); verdict != inventory.Full {
		t.Errorf("all are read or may be written, but an offer is %v", verdict)
	}
	s.Drained(late.ID)
	s.Done(r.ID)
	if _, verdict = s.Offer(prefix("", tokens(0, 4, 200))); verdict != inventory.Taken {
		t.Errorf("all can be had, but an offer is %v", verdict)
	}
}

func TestMissingSaysHowMuchIsThere(t *testing.T) {
	s := inventory.New(4, layout, inventory.Limits{Arrivals: 4, Readings: 4})
	a, _ := s.Offer(prefix("salt", tokens(3, 3, 0)))
	if _, held, verdict := s.Read(prefix("salt", tokens(3, 3, 0))); verdict != inventory.Missing || held != 0 {
		t.Errorf("before the commit: %v, %d held", verdict, held)
	}
	s.Committed(a.ID)
	if _, held, verdict := s.Read(prefix("salt", tokens(2, 3, 100))); verdict != inventory.Missing || held != 2 {
		t.Errorf("after it: %v, %d held", verdict, held)
	}
	if _, held, verdict := s.Read(prefix("other", tokens(3, 3, 0))); verdict != inventory.Missing || held != 0 {
		t.Errorf("under another salt: %v, %d held", verdict, held)
	}
	if stats := s.Stats(); stats.Kept != 3 {
		t.Errorf("%d blocks were kept, want 3", stats.Kept)
	}
}
