package commands

import "fmt"

// counted is a number of things, by the name of one that takes an s for more.
func counted[N int | int64 | uint32 | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
