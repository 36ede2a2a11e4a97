package settings

import (
	"fmt"

	"github.com/spf13/pflag"
)

// UnknownKey is the error of a key in a file that is no flag of the command.
type UnknownKey struct {
	File string
	Line int
	// Key is the whole key as the file has it, its parts joined by ".".
	Key string
	// Nearest is the known key that may have been meant; empty: none is spelled alike.
	Nearest string
}

func (u *UnknownKey) Error() string {
	if u.Nearest == "" {
		return u.Because("keys are named as the command's flags, which its --help lists")
	}
	return u.Because(fmt.Sprintf("did you mean %q?", u.Nearest))
}

// Because is the message with another reason, or hint, than the nearest key.
func (u *UnknownKey) Because(hint string) string {
	return fmt.Sprintf("%s:%d: unknown key %q: %s", u.File, u.Line, u.Key, hint)
}

// HasKey reports whether a key of a file sets a flag of fs.
func HasKey(fs *pflag.FlagSet, key string) bool {
	return newParser(fs, "").flags[joined(key)] != ""
}
