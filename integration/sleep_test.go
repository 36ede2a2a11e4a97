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

// realSleeps are the places where a file sleeps, by time.Sleep or by a receive from
// time.After that nothing can cut short, although it does not run on virtual time: in a
// bubble of testing/synctest that takes none.
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
	of := func(node ast.Expr, name string) {
		if call, ok := node.(*ast.CallExpr); ok {
			node = call.Fun
		}
		if s, ok := node.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "time" {
				places = append(places, files.Position(s.Pos()).String())
			}
		}
	}
	cases := map[ast.Stmt]bool{} // of select, where something else may happen first
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CommClause:
			cases[n.Comm] = true
		case *ast.SelectorExpr:
			of(n, "Sleep")
		case *ast.ExprStmt:
			if receive, ok := n.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW && !cases[n] {
				of(receive.X, "After")
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
		for _, place := range places {
			t.Errorf("%s sleeps: wait for what has to happen, or run in a bubble of testing/synctest; a sleep is too short on a slow machine and too long on every other", place)
		}
	}
}

func TestRealSleepsAreFound(t *testing.T) {
	cases := map[string]int{
		"package x\nimport \"time\"\nfunc f() { time.Sleep(1) }":                                          1,
		"package x\nimport (\"testing/synctest\"; \"time\")\nfunc f() { synctest.Wait(); time.Sleep(1) }": 0,
		"package x\nimport \"time\"\nvar d time.Duration":                                                 0,
		"package x\nimport \"time\"\nfunc f() { <-time.After(1) }":                                        1,
		"package x\nimport \"time\"\nfunc f(c chan int) { select { case <-c: case <-time.After(1): } }":   0,
	}
	for source, want := range cases {
		places, err := realSleeps("x_test.go", []byte(source))
		if err != nil || len(places) != want {
			t.Errorf("%q: %v, %v; want %d", source, places, err, want)
		}
	}
}
