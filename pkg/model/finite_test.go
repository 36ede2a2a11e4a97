package model_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestWeightsThatAreNotFinite: weights that no model computes with are refused, wherever
// they are, and the message says where.
func TestWeightsThatAreNotFinite(t *testing.T) {
	t.Parallel()
	const name = "model.layers.1.self_attn.q_proj.weight"
	odd := map[string][]uint32{ // quiet and signalling NaNs, infinities of both signs
		"BF16": {0x7fc0, 0xff81, 0x7f80, 0xff80, 0xffff},
		"F16":  {0x7e00, 0xfc01, 0x7c00, 0xfc00, 0xffff},
		"F32":  {0x7fc00000, 0xff800001, 0x7f800000, 0xff800000, 0xffffffff},
	}
	for dtype, all := range odd {
		for i, bits := range all {
			for _, element := range []int{0, 1, 17, heads*headSize*hidden - 1} {
				c := newCheckpoint(dtype)
				data := c.tensor(t, name).data
				if dtype == "F32" {
					binary.LittleEndian.PutUint32(data[4*element:], bits)
				} else {
					binary.LittleEndian.PutUint16(data[2*element:], uint16(bits))
				}
				opened, err := model.Open(c.write(t), model.Options{})
				if err == nil {
					_ = opened.Close()
					t.Errorf("%s: %#x is taken", dtype, bits)
					continue
				}
				for _, part := range []string{name, fmt.Sprintf("element %d ", element), "model.safetensors"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s, %d: %v, which does not say %q", dtype, i, err, part)
					}
				}
			}
		}
	}
}

// TestLargeWeightsAreFinite: the largest of each type are weights.
func TestLargeWeightsAreFinite(t *testing.T) {
	t.Parallel()
	largest := map[string][]byte{
		"BF16": {0x7f, 0x7f, 0x7f, 0xff}, "F16": {0xff, 0x7b, 0xff, 0xfb},
		"F32": binary.LittleEndian.AppendUint32(nil, math.Float32bits(-math.MaxFloat32)),
	}
	for dtype, elements := range largest {
		c := newCheckpoint(dtype)
		data := c.tensor(t, "lm_head.weight").data
		for i := 0; i < len(data); i += len(elements) {
			copy(data[i:], elements)
		}
		opened, err := model.Open(c.write(t), model.Options{})
		if err != nil {
			t.Errorf("%s: %v", dtype, err)
			continue
		}
		_ = opened.Close()
	}
}

// TestEachElement: every bf16 there is, at every place among others that are finite, with one more
// that is not behind them.
func TestEachElement(t *testing.T) {
	t.Parallel()
	const n = 19
	for code := range 1 << 16 {
		value := float64(math.Float32frombits(uint32(code) << 16))
		finite := !math.IsNaN(value) && !math.IsInf(value, 0)
		for _, beside := range []uint16{0, 0x7f7f, 0xff7f, 0x8000} {
			data := make([]byte, 2*n+2)
			for i := range n {
				binary.LittleEndian.PutUint16(data[2*i:], beside)
			}
			binary.LittleEndian.PutUint16(data[2*n:], 0xff80)
			for at := range n {
				binary.LittleEndian.PutUint16(data[2*at:], uint16(code))
				want := []int{at, n}
				if finite {
					want = want[1:]
				}
				if got := slices.Collect(model.BF16.NotFinite(data)); !slices.Equal(got, want) {
					t.Fatalf("%#x at %d among %#x: elements %v are not finite, want %v", code, at, beside, got, want)
				}
				binary.LittleEndian.PutUint16(data[2*at:], beside)
			}
		}
	}
}
