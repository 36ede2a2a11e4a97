package docstest

import (
	"fmt"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Step is a part of a script: commands to run to their end, or a mesh to start and
// keep, which `tandem up` does.
type Step struct {
	Mesh bool
	Text string
}

// Steps are what a script does, in its order.
func Steps(script string) (steps []Step, _ error) {
	parsed, err := parse(script)
	if err != nil {
		return nil, err
	}
	commands := func(from, to uint) {
		if text := strings.TrimSpace(script[from:to]); text != "" {
			steps = append(steps, Step{Text: text})
		}
	}
	from := uint(0)
	for _, stmt := range parsed.Stmts {
		before, mesh := stmt.Pos().Offset(), stmt
		if both, is := stmt.Cmd.(*syntax.BinaryCmd); is && both.Op == syntax.AndStmt {
			before, mesh = both.X.End().Offset(), both.Y
		}
		if args := tandemArgs(mesh.Cmd); len(args) == 0 || args[0].Lit() != "up" {
			continue
		}
		commands(from, before)
		steps = append(steps, Step{Mesh: true, Text: source(script, mesh.Cmd)})
		from = stmt.End().Offset()
	}
	commands(from, uint(len(script)))
	return steps, nil
}

// Calls are the arguments of each call of tandem in a script, as they are written but
// for words with an ellipsis, which stands for something to fill in.
func Calls(script string) (calls []string, _ error) {
	parsed, err := parse(script)
	if err != nil {
		return nil, err
	}
	syntax.Walk(parsed, func(node syntax.Node) bool {
		args := tandemArgs(node)
		if args == nil {
			return true
		}
		var words []string
		for _, arg := range args {
			if word := source(script, arg); !strings.Contains(word, "…") {
				words = append(words, word)
			}
		}
		calls = append(calls, strings.Join(words, " "))
		return true
	})
	return calls, nil
}

func parse(script string) (*syntax.File, error) {
	parsed, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, fmt.Errorf("no shell script: %w", err)
	}
	return parsed, nil
}

// tandemArgs are the arguments of a call of tandem; nil: node is none.
func tandemArgs(node syntax.Node) []*syntax.Word {
	call, is := node.(*syntax.CallExpr)
	if !is || len(call.Args) == 0 {
		return nil
	}
	word := func(i int) string {
		if i < len(call.Args) {
			return call.Args[i].Lit()
		}
		return ""
	}
	switch {
	case slices.Contains([]string{"tandem", "./tandem"}, word(0)):
		return append([]*syntax.Word{}, call.Args[1:]...)
	case word(0) == "go" && word(1) == "run" && strings.HasSuffix(word(2), "cmd/tandem"):
		return append([]*syntax.Word{}, call.Args[3:]...)
	}
	return nil
}

func source(script string, node syntax.Node) string {
	return script[node.Pos().Offset():node.End().Offset()]
}
