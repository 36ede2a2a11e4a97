package replay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/replay"
)

// Every event and action of the cores that are recorded can be written.
func TestEveryEventAndActionIsRegistered(t *testing.T) {
	codec, err := replay.NewCodec()
	if err != nil {
		t.Fatal(err)
	}
	var registered []string
	for _, of := range codec.Types() {
		registered = append(registered, of.String())
	}
	for _, core := range []string{"routing", "joining", "worker", "scheduler"} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", core, "messages.go"), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		messages := 0
		check := func(star, name string) {
			messages++
			if name = star + core + "." + name; !slices.Contains(registered, name) {
				t.Errorf("%s is not registered", name)
			}
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl: // the marks of events and actions
				if d.Recv == nil || d.Name.Name != "event" && d.Name.Name != "action" {
					continue
				}
				switch of := d.Recv.List[0].Type.(type) {
				case *ast.StarExpr:
					check("*", of.X.(*ast.Ident).Name)
				case *ast.Ident:
					check("", of.Name)
				}
			case *ast.GenDecl: // of the worker, which has no marks
				for _, spec := range d.Specs {
					if s, is := spec.(*ast.TypeSpec); is && core == "worker" && d.Lparen.IsValid() {
						check("", s.Name.Name)
					}
				}
			}
		}
		if messages < 20 {
			t.Errorf("only %d messages of %s were found", messages, core)
		}
	}
}
