package integration_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// clock are the functions of package time that read the machine's clock or wait.
var clock = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"Tick": true, "NewTimer": true, "NewTicker": true,
}

// coreFaults names what in a file keeps it from being the same in a simulation: a
// goroutine, a channel, a lock, or a clock of its own.
func coreFaults(file string, source []byte) ([]string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, 0)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	var faults []string
	fault := func(at token.Pos, what string) {
		faults = append(faults, fmt.Sprintf("%s: %s: the core is driven by Handle(now, event) alone", files.Position(at), what))
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.GoStmt:
			fault(n.Pos(), "starts a goroutine")
		case *ast.ChanType:
			fault(n.Pos(), "has a channel")
		case *ast.ImportSpec:
			if n.Path.Value == `"sync"` || n.Path.Value == `"sync/atomic"` {
				fault(n.Pos(), "imports "+n.Path.Value)
			}
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && clock[n.Sel.Name] {
				fault(n.Pos(), "uses time."+n.Sel.Name)
			}
		}
		return true
	})
	return faults, nil
}

func TestTheCoreHasNoGoroutines(t *testing.T) {
	root := checkoutRoot(t)
	checked := 0
	for _, file := range sourceFiles(t, root) {
		if !inCore(path.Dir(file)) || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		faults, err := coreFaults(file, source)
		if err != nil {
			t.Error(err)
		}
		for _, f := range faults {
			t.Error(f)
		}
		checked++
	}
	if checked == 0 {
		t.Errorf("no files in %v: the checker looks in the wrong place", core)
	}
}

func TestCoreFaultsAreFound(t *testing.T) {
	cases := map[string]string{
		"func f() { go f() }":                                  "starts a goroutine",
		"func f(c chan int) {}":                                "has a channel",
		"import \"sync\"\nvar m sync.Mutex":                    `imports "sync"`,
		"import \"sync/atomic\"\nvar n atomic.Int64":           `imports "sync/atomic"`,
		"import \"time\"\nvar t = time.Now":                    "uses time.Now",
		"import \"time\"\nfunc f() { <-time.After(1) }":        "uses time.After",
		"import \"time\"\nfunc f(now time.Time) time.Duration": "",
	}
	for source, want := range cases {
		found, err := coreFaults("x.go", []byte("package x\n"+source))
		if err != nil {
			t.Fatal(err)
		}
		if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0], want)) {
			t.Errorf("%q: want %q, got %v", source, want, found)
		}
	}
}
