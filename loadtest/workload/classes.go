package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// class is a class of requests.
type class struct {
	name     string
	weight   float64
	prompt   Distribution // unset: the default
	output   Distribution
	priority *int32
}

// classes in the given order; a pflag.Value.
type classes []class

const classForm = "NAME=WEIGHT[,prompt=LENGTHS][,output=LENGTHS][,priority=N], as in chat=3,prompt=uniform:100-900,priority=1"

// Set adds a class.
func (c *classes) Set(text string) error {
	parsed, err := parseClass(text)
	if err != nil {
		return fmt.Errorf("%q: %w: write %s", text, err, classForm)
	}
	if slices.ContainsFunc(*c, func(other class) bool { return other.name == parsed.name }) {
		return fmt.Errorf("%q: class %s already exists", text, parsed.name)
	}
	if len(*c) == maxClasses {
		return fmt.Errorf("%q: more than %d classes", text, maxClasses)
	}
	*c = append(*c, parsed)
	return nil
}

const (
	// maxClasses bounds the size of reports.
	maxClasses = 100
	// Bounds of weights keep their sum precise.
	minWeight, maxWeight = 1e-6, 1e6
)

func (c *classes) String() string {
	names := make([]string, 0, len(*c))
	for _, class := range *c {
		names = append(names, fmt.Sprintf("%s=%g", class.name, class.weight))
	}
	return strings.Join(names, " ")
}

// Type is shown in the help.
func (c *classes) Type() string { return "NAME=WEIGHT" }

func parseClass(text string) (class, error) {
	var c class
	// Commas separate settings and also occur in distributions: a part without '='
	// belongs to the one before it.
	var settings []string
	for part := range strings.SplitSeq(text, ",") {
		if strings.Contains(part, "=") || len(settings) == 0 {
			settings = append(settings, part)
		} else {
			settings[len(settings)-1] += "," + part
		}
	}
	name, weight, found := strings.Cut(settings[0], "=")
	if !found {
		return c, errors.New("the weight is missing")
	}
	c.name = strings.TrimSpace(name)
	if c.name == "" || len(c.name) > 64 || strings.ContainsFunc(c.name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}) {
		return c, fmt.Errorf("a class cannot be named %q: use up to 64 letters, digits, '-', '_' and '.'", c.name)
	}
	var err error
	if c.weight, err = strconv.ParseFloat(strings.TrimSpace(weight), 64); err != nil || !(c.weight >= minWeight && c.weight <= maxWeight) {
		return c, fmt.Errorf("the weight %q is not a number from %g to %g", weight, minWeight, maxWeight)
	}
	for _, setting := range settings[1:] {
		key, value, _ := strings.Cut(setting, "=")
		switch strings.TrimSpace(key) {
		case "prompt":
			c.prompt, err = ParseLengths(value)
		case "output":
			c.output, err = ParseLengths(value)
		case "priority":
			priority, problem := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
			if problem != nil {
				return c, fmt.Errorf("the priority %q is not a whole number", value)
			}
			c.priority = new(int32(priority))
		default:
			return c, fmt.Errorf("a class has no setting %q", key)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// weight is the total.
func (c classes) weight() float64 {
	total := 0.0
	for i := range c {
		total += c[i].weight
	}
	return total
}

// draw returns a class index with probability proportional to its weight.
func (c classes) draw(random *rand.Rand) int {
	if len(c) < 2 {
		return 0
	}
	at := random.Float64() * c.weight()
	for i := range c {
		if at -= c[i].weight; at < 0 {
			return i
		}
	}
	return len(c) - 1
}
