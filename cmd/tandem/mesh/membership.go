package mesh

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// Values of --router-state-dir that are no folder.
const (
	// StateAuto is the folder where the system has a program keep its state.
	StateAuto = "auto"
	// StateOff is none.
	StateOff = "off"
)

// stateFolder is where a router keeps its last view; empty: nowhere. getenv is
// os.Getenv.
func stateFolder(asked string, getenv func(string) string) string {
	switch asked {
	case "", StateOff:
		return ""
	case StateAuto:
	default:
		return asked
	}
	// systemd's, of which there may be several; else the user's.
	if folder, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); folder != "" {
		return folder
	}
	if folder := getenv("XDG_STATE_HOME"); filepath.IsAbs(folder) {
		return filepath.Join(folder, "tandem")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) && home != "/" {
		return filepath.Join(home, ".local", "state", "tandem")
	}
	return ""
}

// rememberView has a router keep its last view, tell it to other routers, and start
// from one while etcd is away.
func (p *process) rememberView(id, folder string) {
	cfg := membership.LastViewConfig{Router: id, Peers: p.signals}
	if folder = stateFolder(folder, os.Getenv); folder != "" {
		cfg.File = membership.ViewFile(folder, p.options.Etcd)
	} else {
		p.logger.Info("no folder is known for this router's state: while etcd is away it starts from another router's view only; name one with --router-state-dir")
	}
	p.lastView = membership.NewLastView(p.members, cfg, p.logger.With(slog.String("router", id)))
}

// newMembership connects the process to etcd and NATS. etcd must answer in time, or for a
// router that remembers there must be a last view to start from; NATS may come later.
func (p *process) newMembership(ctx context.Context) (_ []lifecycle.Service, err error) {
	if err := p.connect(ctx); err != nil {
		return nil, errors.Join(err, p.disconnect())
	}
	return []lifecycle.Service{{Name: "membership", Close: p.disconnect}}, nil
}

func (p *process) connect(ctx context.Context) (err error) {
	first := p.parts[0] // a router alone takes in signals
	tracer := p.tracing.Tracer("tandem-"+api.Name(first.role), first.id)
	if p.signals, err = signals.Connect(signals.Config{URLs: p.options.NATS, Name: p.name, Registerer: p.registry, Tracer: tracer}, p.logger); err != nil {
		return err
	}
	if p.members, err = membership.Open(membership.Config{Endpoints: p.options.Etcd, LeaseTTL: p.options.LeaseTTL}, p.logger); err != nil {
		return err
	}
	ctx, cancel := p.starting(ctx)
	defer cancel()
	defer time.AfterFunc(etcdPatience, p.sayWaiting).Stop()
	if p.remember != nil {
		p.remember()
		return p.lastView.Await(ctx)
	}
	return p.members.Await(ctx)
}

// etcdPatience is how long etcd may take to answer until people are told what is waited for.
const etcdPatience = 250 * time.Millisecond

func (p *process) sayWaiting() {
	until := "until it answers"
	if p.options.StartTimeout > 0 {
		until = p.options.StartTimeout.String()
	}
	p.logger.Warn("waiting for etcd", slog.Any("endpoints", p.options.Etcd), slog.String("for", until))
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
