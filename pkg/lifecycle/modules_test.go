package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
)

func TestOrderOfModules(t *testing.T) {
	needs := func(names ...string) lifecycle.Module { return lifecycle.Module{Needs: names} }
	table := map[string]lifecycle.Module{
		"a": needs(), "b": needs("a"), "c": needs("d", "a"), "d": needs("a"), "all": needs("c", "b"),
		"lost": needs("b", "nowhere"), "one": needs("two"), "two": needs("three"), "three": needs("one"), "self": needs("self"),
	}
	for _, c := range []struct{ targets, want, text string }{
		{"a", "a", ""},
		{"c", "a d c", ""},
		{"all", "a d c b all", ""},
		{"b all b", "a b d c all", ""},
		{"", "", ""},
		{"nowhere", "", "no module is called nowhere: nowhere"},
		{"lost", "", "no module is called nowhere: lost needs nowhere"},
		{"a two", "", "modules form a cycle: two needs three needs one needs two"},
		{"self", "", "modules form a cycle: self needs self"},
	} {
		order, err := lifecycle.Order(table, strings.Fields(c.targets)...)
		if got := strings.Join(order, " "); got != c.want || (err == nil) != (c.text == "") || err != nil && err.Error() != c.text {
			t.Errorf("%q: %q, %v; want %q, %q", c.targets, got, err, c.want, c.text)
		}
	}
}

// modules is a table in which each module needs the one before it.
func (r *record) modules(names ...string) map[string]lifecycle.Module {
	table := make(map[string]lifecycle.Module)
	for i, name := range names {
		m := lifecycle.Module{New: func(context.Context) ([]lifecycle.Service, error) {
			r.add("new %s", name)
			return []lifecycle.Service{r.service(name)}, nil
		}}
		if i > 0 {
			m.Needs = names[i-1 : i]
		}
		table[name] = m
	}
	return table
}

func TestModulesStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &record{}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		table := r.modules("a", "b", "unused")
		table["all"] = lifecycle.Module{Needs: []string{"b"}}
		if err := lifecycle.RunModules(ctx, quiet(), time.Second, table, "all"); err != nil {
			t.Error(err)
		}
		want := []string{"new a", "new b", "start a", "start b", "stop b", "end b", "stop a", "end a", "close b", "close a"}
		if !slices.Equal(r.events, want) {
			t.Errorf("got %v, want %v", r.events, want)
		}
	})
}

func TestModuleThatCannotBeMade(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		// make fails, changes its service, or asks to stop.
		make func(stop func(), s *lifecycle.Service) error
		want string
		is   error
	}{
		{"new fails", func(func(), *lifecycle.Service) error { return boom }, "new a, new b, close b, close a", boom},
		{"stopped meanwhile", func(stop func(), _ *lifecycle.Service) error { stop(); return boom }, "new a, new b, close b, close a", nil},
		{"stopped after it", func(stop func(), _ *lifecycle.Service) error { stop(); return nil }, "new a, new b, close c, close b, close a", nil},
		{"start fails", func(_ func(), s *lifecycle.Service) error {
			s.Start = func(context.Context) error { return boom }
			return nil
		}, "new a, new b, new d, start a, start b, stop b, stop a, close d, close c, close b, close a", boom},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &record{}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			table := r.modules("a", "b", "c", "d")
			table["c"] = lifecycle.Module{Needs: []string{"b"}, New: func(context.Context) ([]lifecycle.Service, error) {
				s := r.service("c")
				if err := c.make(stop, &s); err != nil {
					return nil, err
				}
				return []lifecycle.Service{s}, nil
			}}
			if err := lifecycle.RunModules(ctx, quiet(), time.Second, table, "d"); !errors.Is(err, c.is) {
				t.Errorf("error %v, want %v", err, c.is)
			}
			if got := strings.Join(r.events, ", "); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	if err := lifecycle.RunModules(t.Context(), quiet(), time.Second, nil, "d"); err == nil {
		t.Error("a module that is not there was run")
	}
}
