package commands

import (
	"fmt"
	"strings"
	"time"
)

// shellPlain are the characters that no shell takes for anything else, wherever they stand.
const shellPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-"

// shellQuoted is a text as one word of a command line.
func shellQuoted(text string) string {
	if text != "" && strings.Trim(text, shellPlain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// counted is a number of things, by the name of one that takes an s for more.
func counted[N int | int64 | uint32 | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// bytesText is a number of bytes as people read it.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.2f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// msText is a time with three digits or more.
func msText(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

func milliseconds[N ~int64](ns N) float64 { return float64(ns) / float64(time.Millisecond) }

func utc(t time.Time) string { return t.UTC().Format(time.DateTime + " MST") }

// shortDigest is as much of a digest as tells versions apart.
func shortDigest(digest string) string { return digest[:min(len(digest), 12)] }
