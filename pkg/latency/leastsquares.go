package latency

import "math"

// ridge is what is added to the diagonal of the normalized equations: enough to
// make collinear inputs share the explanation instead of dividing by nothing, too
// little to be seen otherwise.
const ridge = 1e-9

// maxTerms is the most coefficients that are fitted at once.
const maxTerms = 5

type (
	vector [maxTerms]float64
	matrix [maxTerms][maxTerms]float64
)

// nonNegativeLeastSquares minimizes |X·c − y|² over c ≥ 0, given XᵀX and Xᵀy of n
// columns. With at most five unknowns it is exact and cheap to solve for each of
// the sets of coefficients that may differ from 0 and to keep the best that is
// feasible. Of what collinear columns explain, each has a share in inverse proportion to its dearness.
func nonNegativeLeastSquares(n int, xx matrix, xy, dear vector) vector {
	// Columns scaled to unit length, so that ridge means the same for all.
	var scale vector
	for i := range n {
		if xx[i][i] > 0 {
			scale[i] = 1 / math.Sqrt(xx[i][i])
		}
	}
	for i := range n {
		for j := range n {
			xx[i][j] *= scale[i] * scale[j]
		}
		xy[i] *= scale[i]
		xx[i][i] += ridge * dear[i]
	}
	var best vector // all 0, with loss 0 relative to |y|²
	bestLoss := 0.0
	for set := 1; set < 1<<n; set++ {
		c, ok := solve(n, &xx, &xy, set)
		if !ok {
			continue
		}
		loss := 0.0 // cᵀXᵀXc − 2cᵀXᵀy
		for i := range n {
			for j := range n {
				loss += c[i] * xx[i][j] * c[j]
			}
			loss -= 2 * c[i] * xy[i]
		}
		if loss < bestLoss {
			best, bestLoss = c, loss
		}
	}
	for i := range n {
		best[i] *= scale[i]
	}
	return best
}

// solve finds the c with XᵀX·c = Xᵀy in which only the coefficients in set
// differ from 0, by Cholesky's decomposition. It fails if they are not all
// positive.
func solve(columns int, xx *matrix, xy *vector, set int) (c vector, ok bool) {
	var index [maxTerms]int
	n := 0
	for i := range columns {
		if set&(1<<i) != 0 {
			index[n] = i
			n++
		}
	}
	var l matrix
	for i := range n {
		for j := range i + 1 {
			sum := xx[index[i]][index[j]]
			for k := range j {
				sum -= l[i][k] * l[j][k]
			}
			if i != j {
				l[i][j] = sum / l[j][j]
				continue
			}
			if sum <= 0 {
				return c, false
			}
			l[i][i] = math.Sqrt(sum)
		}
	}
	var z vector
	for i := range n {
		z[i] = xy[index[i]]
		for k := range i {
			z[i] -= l[i][k] * z[k]
		}
		z[i] /= l[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		v := z[i]
		for k := i + 1; k < n; k++ {
			v -= l[k][i] * c[index[k]]
		}
		v /= l[i][i]
		if v <= 0 || math.IsNaN(v) {
			return c, false
		}
		c[index[i]] = v
	}
	return c, true
}
