package model

import "strings"

// Error says what is wrong with a model directory, where, and what to do.
type Error struct {
	// File is the path of the offending file, or of the directory.
	File string
	// Tensor is the name of the offending tensor, if it is one.
	Tensor string
	// Field is the name of the offending JSON field, if it is one.
	Field string
	// Problem is what is wrong, lower case, without a full stop.
	Problem string
	// Remedy is what to do about it.
	Remedy string
	// Err is the cause, if another error is.
	Err error
}

// Error is one line: file, tensor or field, problem, remedy.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Tensor != "" {
		b.WriteString(": tensor " + clip(e.Tensor))
	}
	if e.Field != "" {
		b.WriteString(": field " + clip(e.Field))
	}
	if e.Problem != "" {
		b.WriteString(": " + e.Problem)
	}
	if e.Err != nil {
		b.WriteString(": " + inner(e.Err.Error()))
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// What stands in a repository for a file that Git LFS has not fetched yet.
const (
	lfsPointer = "version https://git-lfs"
	problemLFS = "is a Git LFS pointer, not the file"
	remedyLFS  = "run git lfs pull in the checkpoint's repository"
)

const remedyDownload = "the file is damaged or incomplete: fetch it again"

// inner leaves out the middle of a cause's text, which may quote all of a file.
func inner(s string) string {
	const first, last = 400, 200
	if len(s) > first+last {
		s = strings.ToValidUTF8(s[:first], "") + "..." + strings.ToValidUTF8(s[len(s)-last:], "")
	}
	return s
}

// clip quotes a name that came out of a file, which may be long or unprintable.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "..."
	}
	return quote(s)
}
