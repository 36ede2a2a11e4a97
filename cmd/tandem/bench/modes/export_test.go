package modes

// MixedOf is what rounds leave in which the contenders have these capacities; 0: none.
func MixedOf(aggregated, disaggregated, auto []float64) Mixed {
	var rounds [][]float64
	for i := range auto {
		rounds = append(rounds, []float64{aggregated[i], disaggregated[i], auto[i]})
	}
	return mixed("", "", rounds)
}
