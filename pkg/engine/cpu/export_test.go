package cpu

// Angles shows tests the rotary embedding's table of some positions.
func Angles(theta float64, headSize, start, tokens int) (cos, sin []float32) {
	n := headSize / 2 * tokens
	cos, sin = make([]float32, n), make([]float32, n)
	newRotary(theta, headSize).fill(cos, sin, start, tokens)
	return cos, sin
}
