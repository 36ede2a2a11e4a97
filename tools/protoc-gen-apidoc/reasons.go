package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

const reasonsIntroduction = `
## Reasons of errors

A status has an ` + "`ErrorInfo`" + ` with one of these reasons and the domain ` + "`tandem`" + `. The third column says whether to try again: *again*, when what the reason says has changed, after the time in ` + "`RetryInfo`" + ` if the status has one; *elsewhere*, at another server now; *no*, not with the same call.
`

// reasonComment is what stands behind a reason: its statuses, whether to try again, what it means.
var reasonComment = regexp.MustCompile(`^([A-Za-z_ ]+?)(?:, (again|elsewhere|no))?(?:[:;] (.*))?$`)

// reasons is the section of the page on a Go file of constants, each group of them below a comment.
func reasons(name string, source any) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.ParseComments)
	if err != nil {
		return "", err
	}
	w := new(strings.Builder)
	w.WriteString(reasonsIntroduction)
	last := token.NoPos
	for _, d := range file.Decls {
		constants, is := d.(*ast.GenDecl)
		if !is || !constants.Lparen.IsValid() {
			continue
		}
		for _, s := range constants.Specs {
			reason, is := s.(*ast.ValueSpec)
			if !is || len(reason.Values) != 1 {
				continue
			}
			for _, group := range file.Comments { // those with lines of their own; what stands behind a reason ends after it
				if group.Pos() > max(last, constants.Lparen) && group.End() < reason.Pos() {
					fmt.Fprintf(w, "\n**%s**\n\n| reason | status | try again? | meaning |\n|---|---|---|---|\n", strings.TrimSuffix(strings.Join(strings.Fields(group.Text()), " "), "."))
				}
			}
			value, text := reason.Values[0].(*ast.BasicLit)
			parts := reasonComment.FindStringSubmatch(strings.TrimSpace(reason.Comment.Text()))
			if !text || parts == nil {
				return "", fmt.Errorf("%s: write \"// STATUS, again|elsewhere|no: meaning\" behind the reason", files.Position(reason.Pos()))
			}
			fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", strings.Trim(value.Value, `"`), parts[1], parts[2], parts[3])
			last = reason.Comment.End()
		}
	}
	return w.String(), nil
}
