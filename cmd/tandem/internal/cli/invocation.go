package cli

import (
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"
)

// invocation is what to type to call a program that was called as program: what
// `tandem up` says to try has to work for those who have no tandem on their PATH.
func invocation(program string) string {
	switch {
	case program == "":
		return "tandem"
	case builtByRun(program):
		return "go run ./cmd/tandem"
	case strings.ContainsAny(program, " \t"):
		return strconv.Quote(program)
	}
	return program
}

// builtByRun reports whether `go run` made the program: in a temporary folder
// /…/go-build…/b001/exe, or in the build cache, in a folder that is named for a
// digest with "-d" behind it.
func builtByRun(program string) bool {
	if !filepath.IsAbs(program) {
		return false
	}
	dir := filepath.Dir(program)
	if digest, found := strings.CutSuffix(filepath.Base(dir), "-d"); found {
		_, err := hex.DecodeString(digest)
		return err == nil && len(digest) == 64
	}
	for _, element := range strings.Split(dir, string(filepath.Separator)) {
		if strings.HasPrefix(element, "go-build") {
			return true
		}
	}
	return false
}
