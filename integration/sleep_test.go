package integration_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// mayWait is how often files may sleep: clustertest.Pass, for processes, whose clocks are the machine's,
// and a timer, whose work that is.
var mayWait = map[string]int{"integration/clustertest/client.go": 1, "loadtest/finetimer/finetimer_linux.go": 1}

// realSleeps are the places where a file sleeps, by time.Sleep or by a receive from
// time.After or a timer that nothing can cut short, although it does not run on virtual time:
// in a bubble of testing/synctest that takes none.
func realSleeps(file string, source []byte) ([]string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, 0)
	if err != nil {
		return nil, err
	}
	for _, spec := range parsed.Imports {
		if spec.Path.Value == `"testing/synctest"` {
			return nil, nil
		}
	}
	var places []string
	is := func(node ast.Expr, name string) bool { // of package time
		if call, ok := node.(*ast.CallExpr); ok {
			node = call.Fun
		}
		s, ok := node.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != name {
			return false
		}
		pkg, ok := s.X.(*ast.Ident)
		return ok && pkg.Name == "time"
	}
	timers := map[string]bool{} // variables
	ofTimer := func(node ast.Expr) bool {
		s, ok := node.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "C" {
			return false
		}
		variable, ok := s.X.(*ast.Ident)
		return ok && timers[variable.Name] || is(s.X, "NewTimer")
	}
	sleeps := func(node ast.Node) { places = append(places, files.Position(node.Pos()).String()) }
	cases := map[ast.Stmt]bool{} // of select, where something else may happen first
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CommClause:
			cases[n.Comm] = true
		case *ast.SelectorExpr:
			if is(n, "Sleep") {
				sleeps(n)
			}
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if variable, ok := n.Lhs[i].(*ast.Ident); ok && is(value, "NewTimer") {
					timers[variable.Name] = true
				}
			}
		case *ast.ExprStmt:
			if receive, ok := n.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW && !cases[n] && (is(receive.X, "After") || ofTimer(receive.X)) {
				sleeps(n)
			}
		}
		return true
	})
	return places, nil
}

func TestNothingSleepsOnTheRealClock(t *testing.T) {
	root := checkoutRoot(t)
	for _, file := range sourceFiles(t, root) {
		if path.Ext(file) != ".go" {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		places, err := realSleeps(file, source)
		if err != nil {
			t.Error(err)
		}
		if len(places) == mayWait[file] {
			continue
		}
		for _, place := range places {
			t.Errorf("%s sleeps: wait for what has to happen, or run in a bubble of testing/synctest; a sleep is too short on a slow machine and too long on every other", place)
		}
	}
}

func TestRealSleepsAreFound(t *testing.T) {
	cases := map[string]int{
		"package x\nimport \"time\"\nfunc f() { time.Sleep(1) }":                                                     1,
		"package x\nimport (\"testing/synctest\"; \"time\")\nfunc f() { synctest.Wait(); time.Sleep(1) }":            0,
		"package x\nimport \"time\"\nvar d time.Duration":                                                            0,
		"package x\nimport \"time\"\nfunc f() { <-time.After(1) }":                                                   1,
		"package x\nimport \"time\"\nfunc f(c chan int) { select { case <-c: case <-time.After(1): } }":              0,
		"package x\nimport \"time\"\nfunc f() { t := time.NewTimer(1); <-t.C }":                                      1,
		"package x\nimport \"time\"\nfunc f() { <-time.NewTimer(1).C }":                                              1,
		"package x\nimport \"time\"\nfunc f() { t := time.NewTicker(1); for !g() { <-t.C } }":                        0,
		"package x\nimport \"time\"\nfunc f(c chan int) { t := time.NewTimer(1); select { case <-c: case <-t.C: } }": 0,
	}
	for source, want := range cases {
		places, err := realSleeps("x_test.go", []byte(source))
		if err != nil || len(places) != want {
			t.Errorf("%q: %v, %v; want %d", source, places, err, want)
		}
	}
}
