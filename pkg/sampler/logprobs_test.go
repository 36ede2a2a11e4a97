package sampler_test

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// logprob is the definition in Logprobs' comment, word by word.
func logprob(logits []float32, id int) float32 {
	largest := logits[inOrder(logits)[0]]
	d := func(l float32) float64 { return float64(l) - float64(largest) }
	var sum float64
	for _, l := range logits {
		sum += sampler.Exp(d(l))
	}
	return float32(d(logits[id]) - sampler.Log(sum))
}

func TestLogprobsAgreeWithTheirDefinition(t *testing.T) {
	s := sampler.New()
	rapid.Check(t, func(t *rapid.T) {
		logits := genLogits(60).Filter(drawable).Draw(t, "logits")
		drawn := rapid.IntRange(0, len(logits)-1).Draw(t, "drawn")
		top := rapid.IntRange(0, sampler.MaxTopLogprobs).Draw(t, "top")
		got := s.Logprobs(logits, int32(drawn), top)
		if want := logprob(logits, drawn); math.Float32bits(got.Drawn) != math.Float32bits(want) {
			t.Fatalf("drawn %v, want %v", got.Drawn, want)
		}
		order := inOrder(logits)
		if len(got.Top) != min(top, len(logits)) {
			t.Fatalf("%d of the likeliest, want %d of %d", len(got.Top), top, len(logits))
		}
		for i, l := range got.Top {
			if int(l.Token) != order[i] || math.Float32bits(l.Logprob) != math.Float32bits(logprob(logits, order[i])) {
				t.Fatalf("place %d is %+v, want token %d with %v", i, l, order[i], logprob(logits, order[i]))
			}
		}
	})
}

func TestPromptLogprobsHaveARank(t *testing.T) {
	s := sampler.New()
	rapid.Check(t, func(t *rapid.T) {
		logits := genLogits(60).Draw(t, "logits")
		token := rapid.IntRange(0, len(logits)-1).Draw(t, "token")
		got := s.PromptLogprobs(logits, int32(token), 3)
		if !drawable(logits) {
			if got.Drawn == got.Drawn {
				t.Fatalf("%v of logits that are not finite", got.Drawn)
			}
			return
		}
		if want := slices.Index(inOrder(logits), token) + 1; int(got.Rank) != want {
			t.Fatalf("rank %d, want %d", got.Rank, want)
		}
		got.Rank = 0
		if want := s.Logprobs(logits, int32(token), 3); got.Drawn != want.Drawn || !slices.Equal(got.Top, want.Top) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

func TestLogprobsAreASoftmax(t *testing.T) {
	logits := []float32{1.5, -2, 0.25, 1.5, -40, 3}
	got := sampler.New().Logprobs(logits, 2, len(logits))
	var whole float64
	for _, l := range logits {
		whole += math.Exp(float64(l))
	}
	var sum float64
	for _, l := range got.Top {
		if want := float64(logits[l.Token]) - math.Log(whole); math.Abs(float64(l.Logprob)-want) > 1e-7*math.Abs(want) {
			t.Errorf("token %d: %v, want %v", l.Token, l.Logprob, want)
		}
		sum += math.Exp(float64(l.Logprob))
	}
	if math.Abs(sum-1) > 1e-6 {
		t.Errorf("the probabilities add up to %v", sum)
	}
	if got.Top[1].Token != 0 || got.Top[2].Token != 3 {
		t.Errorf("ties not by id: %+v", got.Top)
	}
	if got.Drawn != got.Top[3].Logprob {
		t.Errorf("drawn %v differs from the same token's %v", got.Drawn, got.Top[3].Logprob)
	}
}

func TestLogprobsOfOddLogits(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		logits []float32
		want   []float32 // by place
	}{
		{"one token", []float32{7}, []float32{0}},
		{"tokens that are never drawn", []float32{-inf, 1, -inf}, []float32{0, -inf, -inf}},
	} {
		got := sampler.New().Logprobs(c.logits, 0, 20)
		var values []float32
		for _, l := range got.Top {
			values = append(values, l.Logprob)
		}
		if !slices.Equal(values, c.want) {
			t.Errorf("%s: %v, want %v", c.name, values, c.want)
		}
	}
}

// TestLogIsClose compares with the standard library, and with the exact value
// where that has one: powers of 2. The library is wrong below the smallest normal
// number on some machines.
func TestLogIsClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.OneOf(rapid.Float64Range(0x1p-1022, math.MaxFloat64), rapid.Float64Range(0.5, 2), rapid.Float64Range(1, 200000)).Draw(t, "x")
		got, want := sampler.Log(x), math.Log(x)
		if math.Abs(got-want) > 1e-14*math.Abs(want) {
			t.Fatalf("log(%v) = %v, want %v", x, got, want)
		}
	})
	ln2, _ := new(big.Float).SetString("0.693147180559945309417232121458176568")
	for n := -1074; n < 1024; n++ {
		want, _ := new(big.Float).Mul(ln2, big.NewFloat(float64(n))).Float64()
		if got := sampler.Log(math.Ldexp(1, n)); math.Abs(got-want) > 3e-16*math.Abs(want) {
			t.Errorf("log(2^%d) = %v, want %v", n, got, want)
		}
	}
	inf := math.Inf(1)
	if sampler.Log(0) != -inf || sampler.Log(inf) != inf || sampler.Log(1) != 0 {
		t.Error("log of 0, 1 or infinity is wrong")
	}
	if got := sampler.Log(-1); got == got {
		t.Errorf("log(-1) = %v", got)
	}
	if got := sampler.Log(math.NaN()); got == got {
		t.Errorf("log(NaN) = %v", got)
	}
}

func TestExpIsClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.OneOf(rapid.Float64Range(-707.9, 0), rapid.Float64Range(-1, 0)).Draw(t, "x")
		if got, want := sampler.Exp(x), math.Exp(x); math.Abs(got-want) > 1e-14*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	})
}

func TestLogprobsMessage(t *testing.T) {
	if got := (*sampler.Logprobs)(nil).Message(); got != nil {
		t.Errorf("of nothing: %v", got)
	}
	got := (&sampler.Logprobs{Drawn: -1.5, Top: []sampler.Logprob{{Token: 9, Logprob: -0.25}, {Token: 0, Logprob: -2}}}).Message()
	want := &inferencev1.TokenLogprobs{Logprob: -1.5, Top: []*inferencev1.TokenLogprob{{TokenId: 9, Logprob: -0.25}, {Logprob: -2}}}
	if !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
