package client_test

import (
	"net/http"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// Running out of local resources is not the server's failure.
func TestOpenAITooManyOpenFiles(t *testing.T) {
	subject := openAI(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") }, nil)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	r, answer := do(t.Context(), t, subject, ask())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	compare(t, seen{Outcome: record.Unsent, Code: "client", Error: "ulimit -n", Prompt: -1, Cached: -1}, r, answer)
}
