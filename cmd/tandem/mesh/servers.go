package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
)

// newEtcd starts an embedded etcd, if no other is named.
func (p *process) newEtcd(ctx context.Context) (_ []lifecycle.Service, err error) {
	if len(p.options.Membership.Endpoints) > 0 {
		return nil, nil
	}
	dir, temporary := p.dataDir, (*tempfolder.Folder)(nil)
	if dir == "" {
		if temporary, err = tempfolder.Make("etcd"); err != nil {
			return nil, fmt.Errorf("make a folder for etcd's data: %w: name one with --data-dir", err)
		}
		dir = filepath.Join(temporary.Path, "data")
	}
	start, cancel := p.starting(ctx)
	defer cancel()
	etcd, err := embedded.StartEtcd(start, embedded.EtcdConfig{DataDir: dir, TLS: p.etcdTLS})
	if err != nil {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			err = fmt.Errorf("--start-timeout: the embedded etcd is not ready after %s; the disk of %s may be very slow: pass a longer time, or with --data-dir a folder on another disk", p.options.StartTimeout, dir)
		case p.dataDir != "":
			err = fmt.Errorf("--data-dir: %w", err)
		}
		return nil, errors.Join(err, temporary.Remove())
	}
	p.options.Membership.Endpoints, p.embedEtcd = []string{etcd.Endpoint()}, true
	space := &embedded.SpaceWatch{Dir: dir, Logger: p.logger}
	return []lifecycle.Service{
		{Name: "etcd", Run: func(serving context.Context) error {
			if err := etcd.Run(serving); err != nil {
				p.withoutEtcd(ctx, dir, err)
				<-serving.Done()
			}
			return nil
		}, Close: func() error {
			etcd.Close()
			return temporary.Remove()
		}},
		{Name: "etcd's disk", Run: func(ctx context.Context) error { space.Run(ctx); return nil }},
	}, nil
}

// withoutEtcd goes on without the embedded etcd, which failed: requests need none. At the end
// of the process, when ctx has ended, that is no news.
func (p *process) withoutEtcd(ctx context.Context, dir string, err error) {
	p.members.Abandon()
	if ctx.Err() == nil {
		p.logger.Error("the embedded etcd has failed: requests are served all the same, but workers can no longer join or leave, nor operators change the policy: free space if the disk is full, and start this process again",
			slog.String("folder", dir), slog.Any("error", err))
	}
}

// newNATS starts an embedded NATS server, if no other is named.
func (p *process) newNATS(context.Context) ([]lifecycle.Service, error) {
	if len(p.options.Signals.URLs) > 0 {
		return nil, nil
	}
	nats, err := embedded.StartNATS(embedded.NATSConfig{TLS: p.natsTLS})
	if err != nil {
		return nil, err
	}
	p.options.Signals.URLs, p.embedNATS = []string{nats.URL()}, true
	return []lifecycle.Service{{Name: "nats", Close: func() error { nats.Close(); return nil }}}, nil
}

// starting bounds what waits for servers to start by StartTimeout; 0: for ever.
func (p *process) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.options.StartTimeout > 0 {
		return context.WithTimeout(ctx, p.options.StartTimeout)
	}
	return context.WithCancel(ctx)
}
