package mesh

import (
	"context"
	"fmt"
	"os"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/memory"
)

// newStores makes the block stores.
func (p *process) newStores(ctx context.Context) ([]lifecycle.Service, error) {
	count := len(p.of(controlv1.Role_ROLE_KVTRANSFER))
	if count == 0 {
		return nil, nil
	}
	left, _ := memory.Available(os.DirFS("/"))
	if err := p.options.Store.Fit(count, left); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	if p.engines != nil {
		if err := p.options.Store.CheckLayout(p.engines.Engines()[0].Capacity().Layout); err != nil { // all have one
			return nil, fmt.Errorf("--%w", err)
		}
	}
	return p.newWorkers(controlv1.Role_ROLE_KVTRANSFER)(ctx)
}

// watchStores calls notify with the block stores that take blocks. One that holds
// blocks of another layout is among them: it may take this one when those are not
// used any more, and refuses until then.
func (p *process) watchStores(ctx context.Context, notify func([]storeclient.Peer)) error {
	return p.members.Watch(ctx, func(view membership.View) {
		var peers []storeclient.Peer
		for _, record := range view.Workers {
			if record.GetRole() == controlv1.Role_ROLE_KVTRANSFER && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING {
				peers = append(peers, storeclient.Peer{ID: record.GetId(), Epoch: record.GetEpoch(), Addresses: record.GetAddresses(), LayoutDigest: record.GetLayoutDigest()})
			}
		}
		notify(peers)
	})
}
