package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unchecked are the keys of a report that no other tool reads figures from, or whose
// figures may be negative.
var unchecked = []string{"target", "host", "client", "tail", "series", "curves", "needs", "effective", "backlog_slope_rps"}

// possible is an error that names the first figure which nothing can measure: a count,
// rate or latency below 0, a share above 1, or an interval that ends before it begins.
// What is shown of such a report, or compared with it, would be wrong without a word.
// value is what encoding/json makes of the report, at its place in it.
func possible(at string, value any) error {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if slices.Contains(unchecked, key) && !strings.HasSuffix(at, "classes") {
				continue
			}
			if err := possible(strings.TrimPrefix(at+"."+key, "."), value[key]); err != nil {
				return err
			}
		}
	case []any:
		if from, to, ok := ends(value); ok {
			switch {
			case from > to:
				return fmt.Errorf("%s is [%v, %v]: an interval cannot end before it begins", at, from, to)
			case strings.Contains(at, ".ci."):
				return possible(at, from)
			}
			return nil
		}
		for i := range value {
			if err := possible(fmt.Sprintf("%s[%d]", at, i), value[i]); err != nil {
				return err
			}
		}
	case float64:
		switch {
		case value < 0:
			return fmt.Errorf("%s is %v, and it cannot be below 0", at, value)
		case value > 1 && strings.Contains(at, "slo_attainment"):
			return fmt.Errorf("%s is above 1, and it is a share", at)
		}
	}
	return nil
}

// ends are the ends of a confidence interval, if that is what a list is.
func ends(list []any) (from, to float64, ok bool) {
	if len(list) != 2 {
		return 0, 0, false
	}
	from, first := list[0].(float64)
	to, second := list[1].(float64)
	return from, to, first && second
}
