package tail

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// line formats a breakdown: "p99 TTFT 812 ms = queue 520 + other 292". Rounded figures
// add up by the largest remainder method. Stages that round to 0 are omitted.
func line(what string, total float64, split parts) string {
	digits := 0
	switch {
	case total < 10:
		digits = 2
	case total < 100:
		digits = 1
	}
	unit := math.Pow(10, float64(digits))
	left := int64(math.Round(total * unit))
	var whole [stages]int64
	order := make([]int, stages)
	for i, v := range split {
		whole[i] = int64(math.Floor(v * unit))
		left -= whole[i]
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(split[b]*unit-math.Floor(split[b]*unit), split[a]*unit-math.Floor(split[a]*unit))
	})
	for k := 0; left > 0 && k < stages; k, left = k+1, left-1 {
		whole[order[k]]++
	}
	show := func(v int64) string { return strconv.FormatFloat(float64(v)/unit, 'f', digits, 64) }
	var s strings.Builder
	s.WriteString(what + " " + show(int64(math.Round(total*unit))) + " ms")
	sign := " = "
	for i, stage := range Stages() {
		if whole[i] == 0 {
			continue
		}
		s.WriteString(sign + strings.ReplaceAll(string(stage), "_", " ") + " " + show(whole[i]))
		sign = " + "
	}
	return s.String()
}
