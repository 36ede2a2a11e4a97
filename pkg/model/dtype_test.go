package model_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestHalfPrecision converts every binary16 and compares with its definition.
func TestHalfPrecision(t *testing.T) {
	t.Parallel()
	data := make([]byte, 0, 2<<16)
	for h := range 1 << 16 {
		data = binary.LittleEndian.AppendUint16(data, uint16(h))
	}
	got := make([]float32, 1<<16)
	if err := (model.Tensor{DType: model.F16, Data: data}).Float32s(got, 0); err != nil {
		t.Fatal(err)
	}
	for h, x := range got {
		exponent, fraction := h>>10&0x1f, h&0x3ff
		want := math.Ldexp(float64(fraction), -24)
		switch {
		case exponent == 0x1f && fraction == 0:
			want = math.Inf(1)
		case exponent == 0x1f:
			want = math.NaN()
		case exponent > 0:
			want = math.Ldexp(float64(1024+fraction), exponent-25)
		}
		if h>>15 == 1 {
			want = -want
		}
		if same := math.Float32bits(x) == math.Float32bits(float32(want)); !same && !(math.IsNaN(want) && x != x) {
			t.Fatalf("%#04x is %g, want %g", h, x, want)
		}
	}
}

func TestUnknownDType(t *testing.T) {
	t.Parallel()
	if err := (model.Tensor{DType: 9, Data: make([]byte, 8)}).Float32s(make([]float32, 1), 0); err == nil {
		t.Error("no error")
	}
	if s := model.DType(9).String(); s != "dtype 9" {
		t.Error(s)
	}
}
