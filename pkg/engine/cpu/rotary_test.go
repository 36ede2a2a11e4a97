package cpu_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestAngles(t *testing.T) {
	const headSize, theta = 64, 500000.0
	for _, start := range []int{0, 1, 255, 4096, 131071, 1 << 20} {
		const tokens = 3
		cos, sin := cpu.Angles(model.Spec{RopeTheta: theta, HeadSize: headSize}, start, tokens)
		for i := range cos {
			frequency := float64(float32(1 / math.Pow(theta, float64(i%(headSize/2)*2)/headSize)))
			s, c := math.Sincos(float64(start+i/(headSize/2)) * frequency)
			if math.Abs(float64(cos[i])-c) > 6e-8 || math.Abs(float64(sin[i])-s) > 6e-8 {
				t.Errorf("position %d, pair %d: cos %v sin %v, want %v %v", start+i/(headSize/2), i%(headSize/2), cos[i], sin[i], c, s)
			}
		}
	}
}

// TestUnscaledFrequencies: they are the float32 next to the exact values, which
// is what a good power function gives too.
func TestUnscaledFrequencies(t *testing.T) {
	for _, theta := range []float64{100, 10000, 500000, 1e6, 5e6, 1e12} {
		for _, size := range []int{2, 6, 64, 80, 96, 128, 256} {
			for i, f := range cpu.Frequencies(model.Spec{RopeTheta: theta, HeadSize: size}) {
				if want := float32(1 / math.Pow(theta, float64(2*i)/float64(size))); f != want {
					t.Errorf("theta %g, size %d: frequency %d is %x, want %x", theta, size, i, f, want)
				}
			}
		}
	}
}
