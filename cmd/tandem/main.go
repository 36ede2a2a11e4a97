// Command tandem serves large language models with prefill and decode on workers
// of their own, and operates such a mesh.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/cli"
)

func main() {
	asked := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // which is what nohup asks for
		asked = append(asked, syscall.SIGHUP)
	}
	// The first signal asks to finish; with the handler gone, the second kills.
	ctx, stop := signal.NotifyContext(context.Background(), asked...)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, cli.Process{
		Program: os.Args[0],
		Args:    os.Args[1:],
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	}))
}
