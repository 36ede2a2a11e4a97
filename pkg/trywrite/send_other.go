//go:build !linux

package trywrite

import "syscall"

func send(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }
