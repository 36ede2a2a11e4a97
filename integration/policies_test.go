package integration_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// policies are the packages that decide, each with those that make its state machine: its
// driver in live services, the simulator, and what replays or measures it alone.
var policies = map[string][]string{
	"pkg/routing":             {"cmd/tandem/bench/router", "pkg/eventlog/routerlog", "pkg/replay", "simulate"}, // services/router records it by routerlog
	"pkg/joining":             {"pkg/eventlog/routerlog", "simulate"},
	"pkg/worker":              {"pkg/replay", "pkg/workerdriver", "simulate"},
	"pkg/scheduler":           {"cmd/tandem/bench/scheduler", "cmd/tandem/bench/speculation", "pkg/worker"},
	"pkg/kvtransfer/sender":   {"pkg/kvtransfer", "simulate"},
	"pkg/kvtransfer/receiver": {"pkg/kvtransfer", "simulate"},
	"pkg/offload":             {"services/prefill", "simulate"},
	"pkg/scaling":             {"services/router/scalingdriver", "simulate"},
}

// uses are what a package's sources say of policies.
type uses struct {
	decides bool     // it has a method Handle(now time.Time, event) []Action, or Evaluate(now time.Time, …) with a result
	makes   []string // packages of which it calls New, or NewIn, which is New in place
}

// read adds what a file says.
func (u *uses) read(file *ast.File) {
	imports := make(map[string]string)
	for _, spec := range file.Imports {
		to, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(to)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = strings.TrimPrefix(to, ours)
	}
	for _, d := range file.Decls {
		if f, is := d.(*ast.FuncDecl); is && f.Recv != nil && f.Name.Name == "Handle" && f.Type.Results.NumFields() == 1 && f.Type.Params.NumFields() == 2 {
			first, isSelector := f.Type.Params.List[0].Type.(*ast.SelectorExpr)
			_, isSlice := f.Type.Results.List[0].Type.(*ast.ArrayType)
			u.decides = u.decides || isSelector && isSlice && first.Sel.Name == "Time"
		}
		if f, is := d.(*ast.FuncDecl); is && f.Recv != nil && f.Name.Name == "Evaluate" && f.Type.Results.NumFields() == 1 && f.Type.Params.NumFields() > 1 {
			first, isSelector := f.Type.Params.List[0].Type.(*ast.SelectorExpr)
			u.decides = u.decides || isSelector && first.Sel.Name == "Time"
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, is := n.(*ast.SelectorExpr); is && (s.Sel.Name == "New" || s.Sel.Name == "NewIn") {
			if of, is := s.X.(*ast.Ident); is && imports[of.Name] != "" {
				u.makes = append(u.makes, imports[of.Name])
			}
		}
		return true
	})
}

// usesOf are those of each package of the checkout, without tests.
func usesOf(t *testing.T, root string) map[string]*uses {
	all := make(map[string]*uses)
	for _, name := range sourceFiles(t, root) {
		of := path.Dir(name)
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "tools/") || testHelper(ours+of) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("parse: %v", err)
		}
		if all[of] == nil {
			all[of] = new(uses)
		}
		all[of].read(file)
	}
	return all
}

// A simulated mesh runs the policy of live services and not a copy: whatever decides is in
// the list above, with all that make one.
func TestWhoImplementsPolicy(t *testing.T) {
	made := make(map[string][]string)
	for of, u := range usesOf(t, checkoutRoot(t)) {
		if u.decides && policies[of] == nil {
			t.Errorf("%s is a state machine that decides: put it into the list of policies, and let the simulator drive it", of)
		}
		if !u.decides && policies[of] != nil {
			t.Errorf("%s decides nothing any more: take it from the list of policies", of)
		}
		for _, policy := range u.makes {
			if policies[policy] != nil && !slices.Contains(made[policy], of) {
				made[policy] = append(made[policy], of)
			}
		}
	}
	for policy, makers := range policies {
		if !slices.Contains(core, policy) {
			t.Errorf("%s decides, but is not held to the rules of a core", policy)
		}
		slices.Sort(made[policy])
		if !slices.Equal(made[policy], makers) {
			t.Errorf("%s is made by %v, and not by %v", policy, made[policy], makers)
		}
	}
	for _, policy := range slices.Sorted(maps.Keys(policies)) {
		t.Logf("%s: made by %s", policy, strings.Join(policies[policy], ", "))
	}
}

func TestUses(t *testing.T) {
	for source, want := range map[string]uses{
		"package a\nfunc (c *C) Handle(now time.Time, e Event) []Action { return nil }":                 {decides: true},
		"package a\nfunc (c *C) Evaluate(now time.Time, d Demand) Sizes { return Sizes{} }":             {decides: true},
		"package a\nfunc (c *C) Evaluate(now time.Time)":                                                {},
		"package a\nfunc (c *C) Handle(e Event) []Action { return nil }":                                {},
		"package a\nfunc Handle(now time.Time, e Event) []Action { return nil }":                        {},
		"package a\nimport \"" + ours + "pkg/routing\"\nvar r = routing.New(c, nil)":                    {makes: []string{"pkg/routing"}},
		"package a\nimport other \"" + ours + "pkg/routing\"\nvar make = other.New":                     {makes: []string{"pkg/routing"}},
		"package a\nimport \"" + ours + "pkg/joining\"\nfunc f() { joining.NewIn(j, p) }":               {makes: []string{"pkg/joining"}},
		"package a\nimport \"" + ours + "pkg/routing\"\nvar m = routing.Redial{}\nvar x = routes.New()": {},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		var got uses
		if got.read(file); got.decides != want.decides || !slices.Equal(got.makes, want.makes) {
			t.Errorf("%s\ngives %+v, want %+v", source, got, want)
		}
	}
}
