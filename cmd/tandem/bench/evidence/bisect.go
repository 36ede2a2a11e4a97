package evidence

// bisect is the search of DistServe's simulator (simdistserve/benchmarks/search_binary.py): it
// halves the range from low to high, which may be rates or others, until it is not larger than
// within, and returns the highest value that passed; low if none did.
func bisect(low, high, within float64, passes func(value float64) (bool, error)) (float64, error) {
	for high-low > within {
		middle := (low + high) / 2
		passed, err := passes(middle)
		if err != nil {
			return low, err
		}
		if passed {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// rateSearch bounds DistServe's search for the best of several layouts.
type rateSearch struct {
	// most is the highest rate, and within the precision of the search. A layout is searched only
	// if it passes at a rate that is higher by step than that of the best so far.
	most, within, step float64
}

// bestOf finds the layout that passes at the highest rate, and this rate; 0 if none does.
func bestOf[L any](layouts []L, s rateSearch, passes func(l L, rate float64) (bool, error)) (best L, highest float64, err error) {
	for _, l := range layouts {
		if highest > 0 {
			if better, err := passes(l, highest+s.step); err != nil {
				return best, highest, err
			} else if !better {
				continue
			}
		}
		rate, err := bisect(highest, s.most, s.within, func(rate float64) (bool, error) { return passes(l, rate) })
		if err != nil {
			return best, highest, err
		}
		if rate > highest {
			best, highest = l, rate
		}
	}
	return best, highest, nil
}
