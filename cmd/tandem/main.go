// Command tandem serves large language models with prefill and decode on workers
// of their own, and operates such a mesh.
// All of it is in internal/commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), append(commands.Terminations(), os.Interrupt)...)
	// The first signal asks to finish; with the handler gone, the second kills. But a
	// terminal that is closed often says so twice.
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	os.Exit(commands.Run(ctx, commands.Process{
		Program: os.Args[0],
		Args:    os.Args[1:],
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	}))
}
