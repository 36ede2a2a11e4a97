package commands

import "strings"

// shellPlain are the characters that no shell takes for anything else, wherever they stand.
const shellPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-"

// shellQuoted is a text as one word of a command line.
func shellQuoted(text string) string {
	if text != "" && strings.Trim(text, shellPlain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
