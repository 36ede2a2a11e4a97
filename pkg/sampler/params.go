package sampler

import (
	"fmt"
	"math"
)

// Params says how a token is drawn from logits. The zero value is greedy.
type Params struct {
	// Temperature divides the logits; 0 takes the likeliest token.
	Temperature float32
	// TopK keeps the k likeliest tokens; 0 keeps all.
	TopK int
	// TopP keeps the likeliest tokens whose probabilities first add up to this;
	// 0 and 1 keep all.
	TopP float32
	// MinP keeps tokens at least this many times as likely as the likeliest.
	MinP float32
	// Seed of the counter-based generator.
	Seed uint64
}

// MaxTemperature is the largest temperature that is accepted.
const MaxTemperature = 100

// FieldError is a parameter out of its range.
type FieldError struct {
	// Field is the parameter's name as requests spell it.
	Field string
	// Problem says what is wrong and what is allowed.
	Problem string
}

// Error names the field and the problem.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate checks ranges. Its error is a *FieldError.
func (p Params) Validate() error {
	in := func(v, low, high float32) bool { return v >= low && v <= high } // false for NaN
	switch {
	case !in(p.Temperature, 0, MaxTemperature):
		return &FieldError{"temperature", fmt.Sprintf("%v is outside 0 to %d", p.Temperature, MaxTemperature)}
	case p.TopK < 0 || p.TopK > math.MaxInt32:
		return &FieldError{"top_k", fmt.Sprintf("%d is outside 0 to %d", p.TopK, math.MaxInt32)}
	case !in(p.TopP, 0, 1):
		return &FieldError{"top_p", fmt.Sprintf("%v is outside 0 to 1", p.TopP)}
	case !in(p.MinP, 0, 1):
		return &FieldError{"min_p", fmt.Sprintf("%v is outside 0 to 1", p.MinP)}
	}
	return nil
}
