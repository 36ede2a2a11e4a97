package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// rememberView has a router keep its last view, tell it to other routers, and start
// from one while etcd is away.
func (p *process) rememberView(id string, cfg membership.LastViewConfig) {
	cfg.Router, cfg.Peers = id, p.signals
	if folder := cfg.Folder(os.Getenv); folder != "" {
		cfg.File = membership.ViewFile(folder, p.options.Membership.Endpoints)
	} else {
		p.logger.Info("this router has no folder for its state: without etcd it can start only from another router's view; set one with --router-state-dir")
	}
	p.lastView = membership.NewLastView(p.members, cfg, p.logger.With(slog.String("router", id)))
}

// newMembership connects the process to etcd and NATS. etcd must answer in time, or for a
// router that remembers there must be a last view to start from; NATS may come later.
func (p *process) newMembership(ctx context.Context) (_ []lifecycle.Service, err error) {
	err = p.connect(ctx)
	if err == nil && p.needsEtcdAlone {
		err = p.awaitFree(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.disconnect())
	}
	return []lifecycle.Service{{Name: "membership", Run: p.fillDirectory, Close: p.disconnect}}, nil
}

// awaitFree waits until no other 'up' has etcd: each gives its parts the same ids.
func (p *process) awaitFree(ctx context.Context) error {
	err := p.members.AwaitFree(ctx, controlv1.Role_ROLE_ROUTER, p.parts[0].id)
	if errors.Is(err, membership.ErrTaken) {
		return fmt.Errorf("--etcd: another 'tandem up' uses the etcd at %s, or crashed less than its --lease-ttl ago: stop it, or wait until that is over, or add parts to it with 'tandem serve'", strings.Join(p.options.Membership.Endpoints, ", "))
	}
	return err
}

// fillDirectory tells the directory who is registered, for the parts that send KV.
func (p *process) fillDirectory(ctx context.Context) error {
	if len(p.of(controlv1.Role_ROLE_PREFILL))+len(p.of(controlv1.Role_ROLE_KVTRANSFER)) == 0 && p.autoscale == nil {
		<-ctx.Done()
		return nil
	}
	_ = p.members.Watch(ctx, p.directory.Update) // ends with ctx only
	return nil
}

func (p *process) connect(ctx context.Context) (err error) {
	first := p.parts[0] // a router alone takes in signals
	tracer := p.tracing.Tracer("tandem-"+api.Name(first.role), first.id)
	nats, etcd := p.options.Signals, p.options.Membership
	for _, files := range []*identity.Config{&nats.TLS, &etcd.TLS} {
		if !files.Enabled() {
			*files = p.options.TLS
		}
	}
	nats.Name, nats.Registerer, nats.Tracer = p.name, p.registry, tracer
	if p.signals, err = signals.Connect(nats, p.logger); err != nil {
		return err
	}
	if p.members, err = membership.Open(etcd, p.logger); err != nil {
		return err
	}
	p.directory = membership.NewDirectory()
	ctx, cancel := p.starting(ctx)
	defer cancel()
	said := make(chan struct{})
	timer := time.AfterFunc(etcdPatience, func() {
		defer close(said)
		p.sayWaiting()
	})
	defer func() {
		if !timer.Stop() {
			<-said
		}
	}()
	await := p.members.Await
	if p.remember != nil {
		p.remember()
		await = p.lastView.Await
	}
	if err := await(ctx); err != nil {
		if p.embedEtcd {
			return fmt.Errorf("--start-timeout: the embedded etcd does not answer after %s (%w); its disk may be very slow: pass a longer time, or with --data-dir a folder on another disk", p.options.StartTimeout, err)
		}
		instead := "or correct --etcd; 'tandem up' needs none"
		if p.needsEtcdAlone {
			instead = "correct --etcd, or leave --etcd out: 'tandem up' then runs an etcd of its own"
		}
		return fmt.Errorf("%w: start etcd ('make servers' builds it as .bin/etcd), %s", err, instead)
	}
	return nil
}

// etcdPatience is how long etcd may take to answer until people are told what is waited for.
const etcdPatience = 250 * time.Millisecond

func (p *process) sayWaiting() {
	until := "until it answers"
	if p.options.StartTimeout > 0 {
		until = p.options.StartTimeout.String()
	}
	p.logger.Warn("waiting for etcd", slog.Any("endpoints", p.options.Membership.Endpoints), slog.String("at_most", until))
}

func (p *process) disconnect() error {
	if p.signals != nil {
		p.signals.Close()
	}
	if p.members != nil {
		return p.members.Close()
	}
	return nil
}
