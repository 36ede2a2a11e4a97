package rig

import (
	"context"
	"fmt"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// waitWorkers waits until the router that serves operators at control is connected to
// so many workers and has heard how busy they are.
func waitWorkers(ctx context.Context, control string, wanted int) error {
	conn, err := rpc.Dial(control, rpc.ClientConfig{Name: "tandem-bench"})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := controlv1.NewControlClient(conn).WatchWorkers(ctx, &controlv1.ListWorkersRequest{})
	there := 0
	for err == nil {
		var list *controlv1.ListWorkersResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		there = 0
		for _, w := range list.GetWorkers() {
			if w.GetConnected() && w.GetLoad() != nil {
				there++
			}
		}
		if there >= wanted {
			return nil
		}
	}
	return fmt.Errorf("the router is connected to %d of %d workers: %w", there, wanted, err)
}
