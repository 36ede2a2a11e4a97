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
