package replay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Every event and action of the cores that are recorded can be written.
func TestEveryEventAndActionIsRegistered(t *testing.T) {
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	for core, kind := range map[string]string{
		"routing": eventlog.KindRouting, "joining": eventlog.KindRequest, "worker": eventlog.KindWorker, "scheduler": eventlog.KindWorker,
	} {
		var registered []string
		for _, of := range codecs[kind].Types() {
			registered = append(registered, of.String())
		}
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

// So can what the life of a request tells routing.
func TestWhatIsToldIsRegistered(t *testing.T) {
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join("..", "joining", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`Tell\{(?:Event: )?(routing\.\w+)\{`).FindAllStringSubmatch(string(source), -1) {
			told++
			if !slices.ContainsFunc(codecs[eventlog.KindRequest].Types(), func(of reflect.Type) bool { return of.String() == found[1] }) {
				t.Errorf("%s is not registered", found[1])
			}
		}
	}
	if told < 7 {
		t.Errorf("only %d were found", told)
	}
}

// WhatIf knows of each event of routing that names a request that it is of that one.
func TestEventsOfRequestsAreKnown(t *testing.T) {
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, of := range codecs[eventlog.KindRouting].Types() {
		event := reflect.New(of).Elem()
		if _, is := event.Interface().(routing.Event); !is || of.Kind() != reflect.Struct {
			continue
		}
		id := event.FieldByName("ID")
		if !id.IsValid() || id.Kind() != reflect.String {
			continue
		}
		known++
		id.SetString("a")
		if got := replay.RequestOf(event.Interface()); got != "a" {
			t.Errorf("a %s of a is of %q", of, got)
		}
	}
	if known < 7 {
		t.Errorf("only %d were found", known)
	}
}
