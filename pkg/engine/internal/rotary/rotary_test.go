package rotary

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// angles is the table of some positions.
func angles(spec model.Spec, start, tokens int) (cos, sin []float32) {
	n := spec.HeadSize / 2 * tokens
	cos, sin = make([]float32, n), make([]float32, n)
	New(spec).Fill(cos, sin, start, tokens)
	return cos, sin
}

func TestAngles(t *testing.T) {
	const headSize, theta = 64, 500000.0
	for _, start := range []int{0, 1, 255, 4096, 131071, 1 << 20} {
		const tokens = 3
		cos, sin := angles(model.Spec{RopeTheta: theta, HeadSize: headSize}, start, tokens)
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
			for i, f := range New(model.Spec{RopeTheta: theta, HeadSize: size}).frequencies {
				if want := float32(1 / math.Pow(theta, float64(2*i)/float64(size))); f != want {
					t.Errorf("theta %g, size %d: frequency %d is %x, want %x", theta, size, i, f, want)
				}
			}
		}
	}
}

// TestScaledFrequencies compares with generate.py's, for published sizes.
func TestScaledFrequencies(t *testing.T) {
	var published []struct {
		HeadSize int `json:"head_size"`
		Theta    float64
		Scaling  struct {
			Kind            string
			Factor          float64
			LowFreqFactor   float64 `json:"low_freq_factor"`
			HighFreqFactor  float64 `json:"high_freq_factor"`
			OriginalContext int     `json:"original_max_position_embeddings"`
			Truncate        *bool
		}
		Frequencies []float64
	}
	data, err := os.ReadFile("../../cpu/testdata/families/frequencies.json")
	if err == nil {
		err = json.Unmarshal(data, &published)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(published) == 0 {
		t.Fatal("no frequencies")
	}
	for _, p := range published {
		spec := model.Spec{HeadSize: p.HeadSize, RopeTheta: p.Theta, RopeScaling: model.RopeScaling{
			Kind: p.Scaling.Kind, Factor: p.Scaling.Factor, OriginalContext: p.Scaling.OriginalContext,
			LowFreqFactor: p.Scaling.LowFreqFactor, HighFreqFactor: p.Scaling.HighFreqFactor,
			BetaFast: 32, BetaSlow: 1, Truncate: p.Scaling.Truncate == nil || *p.Scaling.Truncate, AttentionFactor: 1,
		}}
		for i, f := range New(spec).frequencies {
			// Some roundings to float32; where llama3 passes from one to the other, the
			// difference of two near numbers makes more of them.
			if want := p.Frequencies[i]; math.Abs(float64(f)-want) > 2e-6*want {
				t.Errorf("%s, theta %g, size %d: frequency %d is %g, want %g", p.Scaling.Kind, p.Theta, p.HeadSize, i, f, want)
			}
		}
	}
}

func TestAttentionFactor(t *testing.T) {
	spec := model.Spec{HeadSize: 64, RopeTheta: 10000, RopeScaling: model.RopeScaling{
		Kind: model.RopeYaRN, Factor: 4, OriginalContext: 2048, BetaFast: 32, BetaSlow: 1, Truncate: true, AttentionFactor: 1,
	}}
	cos, sin := angles(spec, 1000, 2)
	spec.RopeScaling.AttentionFactor = 1.25
	largerCos, largerSin := angles(spec, 1000, 2)
	for i := range cos {
		if largerCos[i] != 1.25*cos[i] || largerSin[i] != 1.25*sin[i] {
			t.Fatalf("pair %d: cos %v sin %v with a factor, %v %v without", i, largerCos[i], largerSin[i], cos[i], sin[i])
		}
	}
}
