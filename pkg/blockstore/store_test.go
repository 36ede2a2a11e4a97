package blockstore_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
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

// prefix is for a store of poolBlocks, and for smaller ones.
func prefix(salt string, tokens []int32) blockstore.Prefix {
	return blockstore.NewPrefix(layout, poolBlocks, salt, tokens)
}

func TestOffers(t *testing.T) {
	type offer struct {
		tokens []int32
		want   blockstore.Verdict
		held   int
		commit bool
	}
	for name, offers := range map[string][]offer{
		"what is held is not brought again": {
			{tokens(3, 3, 0), blockstore.Taken, 0, true},
			{tokens(3, 3, 0), blockstore.Held, 0, false},
			{tokens(2, 2, 0), blockstore.Held, 0, false},
			{tokens(3, 5, 100), blockstore.Taken, 3, true},
		},
		"what another brings is not brought twice": {
			{tokens(3, 3, 0), blockstore.Taken, 0, false},
			{tokens(3, 3, 0), blockstore.Arriving, 0, false},
			{tokens(2, 2, 0), blockstore.Arriving, 0, false},
			{tokens(3, 4, 100), blockstore.Arriving, 0, false},
			{tokens(0, 2, 100), blockstore.Taken, 0, false},
		},
		"the only put may take all": {
			{tokens(0, poolBlocks, 0), blockstore.Taken, 0, false},
			{tokens(0, 1, 100), blockstore.Full, 0, false},
		},
		"several puts may take half": {
			{tokens(0, 3, 0), blockstore.Taken, 0, false},
			{tokens(0, 4, 100), blockstore.Full, 0, false},
			{tokens(0, 3, 100), blockstore.Taken, 0, false},
			{tokens(0, 1, 200), blockstore.Full, 0, false},
		},
		"more than there is never fits": {
			{tokens(0, poolBlocks, 0), blockstore.Taken, 0, true},
			{tokens(0, 1000*poolBlocks, 0), blockstore.TooLarge, 0, false},
			{tokens(0, poolBlocks+1, 0), blockstore.TooLarge, 0, false},
		},
		"puts are bounded": {
			{tokens(0, 1, 100), blockstore.Taken, 0, false},
			{tokens(0, 1, 200), blockstore.Taken, 0, false},
			{tokens(0, 1, 300), blockstore.Taken, 0, false},
			{tokens(0, 1, 400), blockstore.Taken, 0, false},
			{tokens(0, 1, 500), blockstore.Busy, 0, false},
		},
		"room is made of what was not used for longest": {
			{tokens(0, 6, 0), blockstore.Taken, 0, true},
			{tokens(0, 6, 100), blockstore.Taken, 0, true},
			{tokens(0, 6, 0), blockstore.Held, 0, false},
			{tokens(0, 6, 200), blockstore.Taken, 0, true},
			{tokens(0, 6, 0), blockstore.Held, 0, false},
			{tokens(0, 6, 100), blockstore.Taken, 0, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := blockstore.New(poolBlocks, layout, blockstore.Limits{Puts: mostAtATime, Fetches: mostAtATime})
			for i, o := range offers {
				p, verdict := s.Offer(prefix("", o.tokens))
				if verdict != o.want || p.Held != o.held {
					t.Fatalf("offer %d: verdict %v with %d held, want %v with %d", i, verdict, p.Held, o.want, o.held)
				}
				if o.commit {
					s.Committed(p.ID)
				}
			}
		})
	}
}

func TestWhatIsReadStaysAndWhatMayBeWrittenIsNotGivenAway(t *testing.T) {
	s := blockstore.New(4, layout, blockstore.Limits{Puts: 4, Fetches: 4})
	p, _ := s.Offer(prefix("", tokens(0, 2, 0)))
	s.Committed(p.ID)
	r, _, verdict := s.Read(prefix("", tokens(0, 2, 0)))
	if verdict != blockstore.Taken {
		t.Fatalf("read: %v", verdict)
	}
	late, verdict := s.Offer(prefix("", tokens(0, 2, 100)))
	if verdict != blockstore.Taken {
		t.Fatalf("offer into what is free: %v", verdict)
	}
	s.Failed(late.ID)
	if _, verdict = s.Offer(prefix("", tokens(0, 1, 200))); verdict != blockstore.Full {
		t.Errorf("all are read or may be written, but an offer is %v", verdict)
	}
	s.Drained(late.ID)
	s.Done(r.ID)
	if _, verdict = s.Offer(prefix("", tokens(0, 4, 200))); verdict != blockstore.Taken {
		t.Errorf("all can be had, but an offer is %v", verdict)
	}
}

func TestMissingSaysHowMuchIsThere(t *testing.T) {
	s := blockstore.New(4, layout, blockstore.Limits{Puts: 4, Fetches: 4})
	p, _ := s.Offer(prefix("salt", tokens(3, 3, 0)))
	if _, held, verdict := s.Read(prefix("salt", tokens(3, 3, 0))); verdict != blockstore.Missing || held != 0 {
		t.Errorf("before the commit: %v, %d held", verdict, held)
	}
	s.Committed(p.ID)
	if _, held, verdict := s.Read(prefix("salt", tokens(2, 3, 100))); verdict != blockstore.Missing || held != 2 {
		t.Errorf("after it: %v, %d held", verdict, held)
	}
	if _, held, verdict := s.Read(prefix("other", tokens(3, 3, 0))); verdict != blockstore.Missing || held != 0 {
		t.Errorf("under another salt: %v, %d held", verdict, held)
	}
	if stats := s.Stats(); stats.Kept != 3 {
		t.Errorf("%d blocks were kept, want 3", stats.Kept)
	}
}

// What came is found under the hashes of its offer: no block is hashed while others wait for the store.
func TestCommittedHashesNothing(t *testing.T) {
	s := blockstore.New(4, layout, blockstore.Limits{Puts: 4, Fetches: 4})
	for _, hashes := range [][]kvcache.Hash{{1, 2}, {1, 2, 3}} { // the second put brings one block
		p, verdict := s.Offer(prefix("", tokens(3, len(hashes), 0)).WithHashes(hashes...))
		if verdict != blockstore.Taken {
			t.Fatalf("offer: %v", verdict)
		}
		s.Committed(p.ID)
		if got := s.Hashes(); !slices.Equal(got, hashes) {
			t.Errorf("blocks have the hashes %v, want those of the offer, %v", got, hashes)
		}
	}
}
