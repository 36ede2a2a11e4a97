package modes

// MixedOf is what rounds leave in which the contenders have these capacities; 0: none.
func MixedOf(aggregated, disaggregated, auto []float64) Mixed {
	rounds := make([][]*float64, len(auto))
	for i := range rounds {
		for _, c := range [][]float64{aggregated, disaggregated, auto} {
			var found *float64
			if c[i] > 0 {
				found = &c[i]
			}
			rounds[i] = append(rounds[i], found)
		}
	}
	return mixed("", "", rounds)
}
