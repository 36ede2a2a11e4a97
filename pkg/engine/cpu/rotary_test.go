package cpu_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

func TestAngles(t *testing.T) {
	const headSize, theta = 64, 500000.0
	for _, start := range []int{0, 1, 255, 4096, 131071, 1 << 20} {
		const tokens = 3
		cos, sin := cpu.Angles(theta, headSize, start, tokens)
		for i := range cos {
			frequency := float64(float32(1 / math.Pow(theta, float64(i%(headSize/2)*2)/headSize)))
			s, c := math.Sincos(float64(start+i/(headSize/2)) * frequency)
			if math.Abs(float64(cos[i])-c) > 6e-8 || math.Abs(float64(sin[i])-s) > 6e-8 {
				t.Errorf("position %d, pair %d: cos %v sin %v, want %v %v", start+i/(headSize/2), i%(headSize/2), cos[i], sin[i], c, s)
			}
		}
	}
}
