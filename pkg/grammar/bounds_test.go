package grammar_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// many is an array of JSON that has an item so often.
func many(item string, times int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(item+",", times), ",") + "]"
}

// squared are two keywords with 256 alternatives each, so 65536 together.
var squared = `"anyOf":` + many("{}", 256) + `,"allOf":[{"anyOf":` + many("{}", 256) + `}]`

// large are small schemas that stand for a lot.
var large = map[string]string{
	"items":             `{"prefixItems":` + many("{}", 1024) + `,` + squared + `}`,
	"values":            `{"enum":` + many("null", 50000) + `,` + squared + `}`,
	"numbers":           `{"enum":` + many("1", 125000) + `,` + squared + `}`,
	"fewer numbers":     `{"enum":` + many("1", 60000) + `,` + squared + `}`,
	"a long value":      `{"enum":[` + many("1", 100000) + `],` + squared + `}`,
	"a long constant":   `{"enum":[` + many("1", 60000) + `],"const":` + many("1", 60000) + `,` + squared + `}`,
	"a long text":       `{"enum":["` + strings.Repeat("a", 200000) + `"],` + squared + `}`,
	"values and values": `{"$ref":"#/$defs/a","allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"enum":[` + values(400, 300) + `]}}}`,
	"schemas of items":  `{"allOf":` + many(`{"items":{}}`, 10000) + `,"prefixItems":` + many("{}", 1024) + `,"anyOf":` + many("{}", 64) + `}`,
	"schemas of others": `{"allOf":` + many(`{"additionalProperties":{}}`, 5000) + `,"anyOf":` + many("{}", 256) + `}`,
	"a long pattern":    `{"allOf":` + many(`{"$ref":"#/$defs/p"}`, 10000) + `,"$defs":{"p":{"pattern":"` + strings.Repeat("\\\\S", 5000) + `"}}}`,
	"patterns":          `{"allOf":` + many(`{"pattern":"a"}`, 10000) + `,"anyOf":` + many("{}", 256) + `}`,
}

// values are texts of arrays that differ in their last item.
func values(n, size int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("[%s%d]", strings.Repeat("1,", size), i))
	}
	return strings.Join(out, ",")
}

// allocated is how many bytes compiling takes, all together.
func allocated(ctx context.Context, source *inferencev1.StructuredOutput) (int, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := grammar.Compile(ctx, source, nil)
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc), err
}

// Small schemas that stand for a lot are refused before they take much memory.
func TestLargeSchemas(t *testing.T) {
	longtest.OneGoroutine(t)
	for name, text := range large {
		if len(text) > grammar.MaxSourceBytes {
			t.Errorf("%s: has %d bytes", name, len(text))
		}
		took, err := allocated(t.Context(), schema(text))
		var wrong *grammar.Error
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Problem, "takes too long") && !strings.Contains(wrong.Problem, "more than 256 alternatives") {
			t.Errorf("%s: %.200v", name, err)
		}
		if took > 160<<20 { // nearly all of it is garbage
			t.Errorf("%s: %d MiB are allocated", name, took>>20)
		}
	}
}

// What a schema takes does not grow with the names that it stands below.
func TestLongName(t *testing.T) {
	longtest.OneGoroutine(t)
	text := `{"properties":{"` + strings.Repeat("a", 20000) + `":{"allOf":` + many(`{"prefixItems":`+many("{}", 1024)+`}`, 30) + `}}}`
	took, err := allocated(t.Context(), schema(text))
	if err != nil {
		t.Errorf("%.200v", err)
	}
	if took > 160<<20 {
		t.Errorf("%d MiB are allocated", took>>20)
	}
}

// Strings of many different lengths share what they have in common.
func TestManyLengths(t *testing.T) {
	longtest.OneGoroutine(t)
	var ways []string
	for i := range 190 {
		var properties []string
		for j := i; j < i+20; j++ {
			properties = append(properties, fmt.Sprintf(`"p%d":{"type":"string","maxLength":%d}`, j, j))
		}
		ways = append(ways, `{"type":"object","properties":{`+strings.Join(properties, ",")+`}}`)
	}
	took, err := allocated(t.Context(), schema(`{"anyOf":[`+strings.Join(ways, ",")+`]}`))
	if err != nil {
		t.Errorf("%.200v", err)
	}
	if took > 48<<20 {
		t.Errorf("%d MiB are allocated", took>>20)
	}
}

// A long number is refused before it is compared.
func TestLongNumber(t *testing.T) {
	_, err := grammar.Compile(t.Context(), schema(`{"enum":[`+strings.Repeat("7", 250000)+`]}`), nil)
	if err == nil || !strings.Contains(err.Error(), "a number has 250000 characters") {
		t.Errorf("%.200v", err)
	}
}

// Long texts are read without a deep stack, also where several begin alike.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("a", 130000)
	for name, source := range map[string]string{
		"one": `{"const":"` + long + long + `"}`,
		"two": `{"enum":["` + long + `b","` + long + `c"]}`,
	} {
		var err error
		grown := stackGrowth(func() { _, err = grammar.Compile(t.Context(), schema(source), nil) })
		if err == nil || !strings.Contains(err.Error(), "is too large") {
			t.Errorf("%s: %.200v", name, err)
		}
		if grown > 1<<20 {
			t.Errorf("%s: the stack grows by %d KiB", name, grown>>10)
		}
	}
}

// stackGrowth is by how many bytes the stack of a new goroutine grows within a call.
func stackGrowth(call func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector shrinks stacks
	runtime.GC()
	stacks := func() int {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	grown := make(chan int)
	go func() {
		before := stacks()
		call()
		grown <- stacks() - before
	}()
	return <-grown
}

// A compilation whose request is gone ends before it looks at each of many values.
func TestLargeSchemaEnds(t *testing.T) {
	longtest.OneGoroutine(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, text := range large {
		took, err := allocated(ctx, schema(text))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %.200v", name, err)
		}
		if took > 48<<20 { // most of it is to parse the text
			t.Errorf("%s: %d MiB are allocated", name, took>>20)
		}
	}
}

// Equal bounds of numbers are made once, however many properties have them and in how many ways they
// are written.
func TestManyEqualBounds(t *testing.T) {
	var properties []string
	for i := range 400 {
		kind, high := "integer", "9007199254740991"
		if i%2 == 0 {
			kind, high = "number", "9007199254740991.0"
		}
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":%q,"minimum":-9007199254740991,"maximum":%s}`, i, kind, high))
	}
	text := `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"additionalProperties":false}`
	g, err := grammar.Compile(t.Context(), schema(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"9007199254740991": true, "-9007199254740991": true, "9007199254740992": false, "-9007199254740992": false} {
		if g.Accepts([]byte(`{"p399":`+value+`}`)) != want {
			t.Errorf("%s: accepted %v", value, !want)
		}
	}
}

// Bounds that are too much are refused by their place, and in other words where it is all of them together.
func TestTooManyBounds(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{"properties":{"a":{"type":"string","pattern":"^[ab]*a[ab]{8}$","maxLength":200}}}`, "/properties/a/pattern: is too large beside the other limits:"},
		{different(1000), "/properties/p"},
		{different(1000), "/minimum: is too large beside all the other limits that stand together:"},
		{`{"properties":{"a":{"type":"integer","minimum":0,"maximum":1e60}}}`, "/properties/a/maximum: a bound has more digits"},
	} {
		if _, err := grammar.Compile(t.Context(), schema(c.schema), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: %v", c.schema, err)
		}
	}
}

// different is a schema of so many numbers with bounds of their own.
func different(n int) string {
	var properties []string
	for i := range n {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"integer","minimum":%d,"maximum":%d}`, i, -9007199254740991+i, 9007199254740991-i))
	}
	return `{"properties":{` + strings.Join(properties, ",") + `}}`
}
