package integration_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// realSleeps are the places where a test file sleeps although it does not run on
// virtual time: in a bubble of testing/synctest, time.Sleep takes none. (Outside
// tests, the linter forbids it.)
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
	ast.Inspect(parsed, func(node ast.Node) bool {
		if call, ok := node.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" {
			if of, ok := call.X.(*ast.Ident); ok && of.Name == "time" {
				places = append(places, files.Position(call.Pos()).String())
			}
		}
		return true
	})
	return places, nil
}

func TestNoTestSleepsOnTheRealClock(t *testing.T) {
	root := checkoutRoot(t)
	for _, file := range sourceFiles(t, root) {
		if !strings.HasSuffix(file, "_test.go") {
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
	}
	for source, want := range cases {
		places, err := realSleeps("x_test.go", []byte(source))
		if err != nil || len(places) != want {
			t.Errorf("%q: %v, %v; want %d", source, places, err, want)
		}
	}
}
