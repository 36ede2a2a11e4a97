package grammar_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/grammar/grammartest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// get gets the grammar of a source, which one tenant uses for a moment.
func get(t *testing.T, c *grammar.Cache, source *inferencev1.StructuredOutput) (*grammar.Grammar, error) {
	t.Helper()
	g, release, err := c.Get(t.Context(), "one", source)
	if err == nil {
		release()
	}
	return g, err
}

// A cache compiles a source once, and forgets those that nobody uses.
func TestCache(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	first, err := get(t, c, expression("a+"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := get(t, c, expression(fmt.Sprintf("b{%d}", i))); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			if again, err := get(t, c, expression("a+")); err != nil || again != first {
				t.Fatalf("after %d others it was compiled again, %v", i, err)
			}
		}
	}
	for _, c := range []*grammar.Cache{c, grammar.NewCache(nil)} {
		for range 2 {
			if _, err := get(t, c, expression("(")); err == nil {
				t.Error("a wrong expression is compiled")
			}
			if _, err := get(t, c, expression("a")); err != nil {
				t.Error(err)
			}
		}
	}
}

// A cache keeps no source, however many it refuses that are too long.
func TestCacheOfLongSources(t *testing.T) {
	c := grammar.NewCache(nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 32 {
		if _, err := get(t, c, schema(fmt.Sprint(i, strings.Repeat(" ", 1<<20)))); err == nil {
			t.Error("a source of a MiB is compiled")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int(after.HeapAlloc) - int(before.HeapAlloc); kept > 8<<20 {
		t.Errorf("%d bytes are kept", kept)
	}
	runtime.KeepAlive(c)
}

// Many calls for few sources are served by compiling each once; a call that waits gives up with its
// context.
func TestCacheOfManyCalls(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	const sources, calls = 4, 16
	var got [sources][calls]*grammar.Grammar
	var all sync.WaitGroup
	for i := range sources {
		for j := range calls {
			all.Go(func() {
				g, err := get(t, c, expression(fmt.Sprintf("a{%d}", i+1)))
				if err != nil {
					t.Error(err)
				}
				got[i][j] = g
			})
		}
	}
	all.Wait()
	for i := range got {
		for _, g := range got[i] {
			if g == nil || g != got[i][0] {
				t.Fatalf("source %d was compiled more than once", i)
			}
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if g, _, err := c.Get(over, "one", expression("a{1}")); err != nil || g != got[0][0] {
		t.Errorf("what is compiled needs no time: %v", err)
	}
}

// A cache knows many sources that it only checks.
func TestManySourcesAreCheckedOnce(t *testing.T) {
	c := grammar.NewCache(nil)
	source := func(i int) *inferencev1.StructuredOutput { return expression(fmt.Sprintf("b{%d}", i+1)) }
	for i := range 100 {
		if _, err := get(t, c, source(i)); err != nil {
			t.Fatal(err)
		}
	}
	grammartest.Fill(t, c) // whatever has to be compiled is refused now
	for i := range 100 {
		if _, err := get(t, c, source(i)); err != nil {
			t.Fatalf("source %d: %v", i, err)
		}
	}
}

// getter returns a function that gets the grammar of an expression from a cache.
func getter(t *testing.T, c *grammar.Cache) func(text string) *grammar.Grammar {
	return func(text string) *grammar.Grammar {
		t.Helper()
		g, err := get(t, c, expression(text))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
}

// Grammars grow with the masks that they keep, and a cache keeps those that were used last as far as
// they fit.
func TestCacheIsBoundedBySize(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	get := getter(t, c)
	first, second := get("a+"), get("b+")
	before := first.Size()
	first.Constrain(nil).Allowed([]int32{1 + 'a'})
	if first.Size() <= before {
		t.Errorf("with a mask it takes %d bytes, %d before", first.Size(), before)
	}
	c.SetMost(first.Size() + second.Size() + 4096) // and not as much again for a third
	if get("a+") != first || get("b+") != second {
		t.Error("a grammar is compiled again while all fit")
	}
	get("c+")
	get("d+")
	get("e+")
	if get("a+") == first {
		t.Error("the grammar that was used the longest ago is kept")
	}
	last := get("e+")
	c.SetMost(1)
	if get("e+") != last {
		t.Error("the grammar that was used last is not kept")
	}
}

// What grows past what a cache keeps, with sources that it knows, drops those that were used the
// longest ago.
func TestCacheIsBoundedWhileItsGrammarsGrow(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	get := getter(t, c)
	first, release := use(t, c, "two", "a{1,9}")
	defer release()
	second := get("[ab]{1,9}")
	c.SetMost(first.Size() + second.Size() + 2048)
	of := first.Constrain(nil)
	for n := range 8 { // places and masks
		of.Allowed(slices.Repeat([]int32{1 + 'a'}, n))
	}
	if get("a{1,9}") != first {
		t.Error("the grammar that was used last is not kept")
	}
	c.SetMost(1 << 20)
	if get("[ab]{1,9}") == second {
		t.Error("both are kept, though one grew")
	}
}

// use gets grammars for tenants, until they are released.
func use(t *testing.T, c *grammar.Cache, tenant, text string) (g *grammar.Grammar, release func()) {
	t.Helper()
	g, release, err := c.Get(t.Context(), tenant, expression(text))
	if err != nil {
		t.Fatalf("%s of %s: %v", text, tenant, err)
	}
	return g, release
}

// What is in use is shared and counts, and with too much of it nothing new is compiled.
func TestCacheIsBoundedByWhatIsInUse(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	first, releaseFirst := use(t, c, "one", "a+")
	c.SetMost(first.Size()) // half of it is less than the first takes
	if again, release := use(t, c, "two", "a+"); again != first {
		t.Error("what is in use is compiled again")
	} else {
		release()
	}
	if _, _, err := c.Get(t.Context(), "one", expression("b+")); !errors.Is(err, grammar.ErrBusy) {
		t.Errorf("a tenant whose grammars take more than half has another: %v", err)
	}
	c.SetMost(first.Size() - 1)
	if _, _, err := c.Get(t.Context(), "two", expression("b+")); !errors.Is(err, grammar.ErrBusy) {
		t.Errorf("with too much in use, another is compiled: %v", err)
	}
	releaseFirst()
	releaseFirst() // once is enough
	second, releaseSecond := use(t, c, "one", "b+")
	c.SetMost(1 << 20)
	if again, release := use(t, c, "one", "a+"); again == first {
		t.Error("a grammar that does not fit is kept while nobody uses it")
	} else {
		release()
	}
	if again, release := use(t, c, "two", "b+"); again != second {
		t.Error("what is in use was dropped")
	} else {
		release()
	}
	releaseSecond()
}

// However many calls of one tenant wait, those of another are served.
func TestTenantsShareACache(t *testing.T) {
	c := grammar.NewCache(nil)
	release := grammartest.FillBy(t, c, "one")
	if _, _, err := c.Get(t.Context(), "one", expression("x")); !errors.Is(err, grammar.ErrBusy) {
		t.Errorf("a tenant has more calls wait than half: %v", err)
	}
	if runtime.GOMAXPROCS(0) > 1 { // else the only place is taken
		if _, _, err := c.Get(t.Context(), "two", expression("y")); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
	release()
	if _, _, err := c.Get(t.Context(), "one", expression("x")); err != nil {
		t.Errorf("when they have ended: %v", err)
	}
}
