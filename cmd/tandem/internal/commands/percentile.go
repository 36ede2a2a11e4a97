package commands

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// needs is how many samples the quantile q takes, 0 to 1. Of fewer it is another name
// for the largest, or says nothing.
func needs(q float64) uint64 { return uint64(stats.QuantileNeeds(q)) }

// enough is value if count samples carry the quantile q, otherwise nil.
func enough(q float64, count uint64, value float64) *float64 {
	if count < needs(q) {
		return nil
	}
	return &value
}

// tooFew gathers the quantiles that a table leaves out, in order.
type tooFew struct{ left []float64 }

// cell is value by format if there is one, otherwise a dash.
func (t *tooFew) cell(q float64, format string, value *float64) string {
	if value != nil {
		return fmt.Sprintf(format, *value)
	}
	if at, is := slices.BinarySearch(t.left, q); !is {
		t.left = slices.Insert(t.left, at, q)
	}
	return "-"
}

// reason says why there are dashes, empty if there are none.
func (t *tooFew) reason() string {
	if len(t.left) == 0 {
		return ""
	}
	each := make([]string, len(t.left))
	for i, q := range t.left {
		each[i] = fmt.Sprintf("p%.4g takes %d", 100*q, needs(q))
	}
	return "-: too few samples to tell that percentile: " + strings.Join(each, ", ")
}
