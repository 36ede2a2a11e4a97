package commands

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// dumb is the variable of a terminal that knows no escape codes.
const dumb = "TERM=dumb"

// isTerminal reports whether a stream is a terminal; /dev/null is none.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// writesOver reports whether a stream is a terminal that knows the codes to write over what it shows.
func writesOver(stream any) bool { return isTerminal(stream) && !slices.Contains(os.Environ(), dumb) }

// styles reports whether text on a terminal may have a style (see no-color.org).
func styles(environ []string) bool {
	return !slices.ContainsFunc(environ, func(variable string) bool {
		value, is := strings.CutPrefix(variable, "NO_COLOR=")
		return variable == dumb || is && value != ""
	})
}

// terminalSize is how many columns and lines a terminal has; 0 of what is none.
func terminalSize(stream any) (columns, lines int) {
	if file, is := stream.(*os.File); is {
		columns, lines, _ = term.GetSize(int(file.Fd())) // 0 with an error
	}
	return columns, lines
}
