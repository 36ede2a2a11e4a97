package mesh

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"syscall"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// newListeners opens all ports: that one is taken should not be found after a long load.
func (p *process) newListeners(context.Context) ([]lifecycle.Service, error) {
	limit, err := OpenFilesLimit()
	if err != nil {
		return nil, err
	}
	if err := checkOpenFiles(limit, max(len(p.parts), 1+p.computing())); err != nil {
		return nil, err
	}
	if err := p.listen(); err != nil {
		return nil, errors.Join(err, p.closeListeners())
	}
	return []lifecycle.Service{{Name: "listeners", Close: p.closeListeners}}, nil
}

func (p *process) listen() (err error) {
	for _, at := range []struct {
		flag, address string
		listener      *net.Listener
	}{
		{"listen", p.parts[0].listen, &p.parts[0].listener},
		{"http", p.options.HTTP, &p.http},
		{"metrics", p.options.Metrics, &p.metrics},
		{"control", p.options.Control, &p.control},
	} {
		if at.address == "" {
			continue
		}
		if *at.listener, err = p.openOrNext(at.flag, at.address); err != nil {
			return fmt.Errorf("--%s: %w", at.flag, err)
		}
	}
	for _, part := range p.parts {
		if err := p.listenPart(part); err != nil {
			return err
		}
	}
	return nil
}

// listenPart opens the ports of a part.
func (p *process) listenPart(part *part) (err error) {
	if part.listener == nil {
		if part.listener, err = p.open(part.listen); err != nil {
			return fmt.Errorf("%s: %w", part.id, err)
		}
	}
	kv := kvPlaceOf(part.listen, part.advertise, part.kvListen, part.kvAdvertise)
	if part.advertise, err = advertised(part.advertise, part.listener.Addr()); err != nil {
		return err
	}
	if part.role != controlv1.Role_ROLE_ROUTER {
		part.kv, err = p.listenKV(kv, part.role) // prefill workers receive KV too, from block stores
	}
	return err
}

// closePart forgets the certificate of a part that has ended, and closes its ports: its servers have
// closed them, if they were started.
func (p *process) closePart(part *part) {
	p.sources.remove(part.tls)
	var all []net.Listener
	if part.listener != nil {
		all = append(all, part.listener)
	}
	if part.kv != nil {
		all = append(all, part.kv.listeners...)
		if part.kv.pages != nil {
			all = append(all, part.kv.pages)
		}
	}
	for _, l := range all {
		_ = l.Close()
	}
	p.listeners = slices.DeleteFunc(p.listeners, func(l net.Listener) bool { return slices.Contains(all, l) })
}

func (p *process) open(address string) (net.Listener, error) {
	listener, err := rpc.Listen(address)
	if err != nil {
		return nil, err
	}
	p.listeners = append(p.listeners, listener)
	return listener, nil
}

// nextPorts is how many ports behind a taken one are tried.
const nextPorts = 100

// openOrNext opens the address of a flag. One that nobody asked for and another process
// has, as that of a second 'tandem up', gives way to the next port that is free.
func (p *process) openOrNext(flag, address string) (net.Listener, error) {
	listener, err := p.open(address)
	if p.given == nil || p.given(flag) || !errors.Is(err, syscall.EADDRINUSE) {
		return listener, err
	}
	host, text, _ := net.SplitHostPort(address) // it could be listened on
	port, _ := strconv.Atoi(text)
	for next := port + 1; next <= min(port+nextPorts, math.MaxUint16); next++ {
		listener, nextErr := p.open(net.JoinHostPort(host, strconv.Itoa(next)))
		if nextErr == nil {
			p.taken[flag] = address
			return listener, nil
		}
		if !errors.Is(nextErr, syscall.EADDRINUSE) {
			return nil, nextErr
		}
	}
	return nil, err
}

// closeListeners closes all ports. Servers close theirs; closing twice is harmless.
func (p *process) closeListeners() error {
	errs := []error{p.sockets.close()}
	for _, listener := range p.listeners {
		if err := listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
