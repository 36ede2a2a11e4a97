package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/kvtransfer"
)

// kvPlace says where a worker receives KV over TCP.
type kvPlace struct {
	// listen is host:port, flag the flag that set it, for errors.
	listen, flag string
	// advertise is the address that others are told; empty: made of host, what others
	// call this one, and the port; without that, of what is listened on.
	advertise, host string
}

// kvPlaceOf is where to receive KV beside a main listener: unless asked for
// otherwise, on a free port of its host, or of this machine if it is a socket.
func kvPlaceOf(listen, advertise, kvListen, kvAdvertise string) kvPlace {
	place := kvPlace{listen: kvListen, flag: "--kv-listen", advertise: kvAdvertise}
	main, _, err := net.SplitHostPort(listen)
	beside := err == nil && !strings.HasPrefix(listen, unixScheme)
	if place.listen == "" {
		place.listen = "127.0.0.1:0"
		if beside {
			place.listen = net.JoinHostPort(main, "0")
		}
	}
	host, _, err := net.SplitHostPort(place.listen)
	told, _, toldErr := net.SplitHostPort(advertise)
	if err == nil && toldErr == nil && !strings.HasPrefix(advertise, unixScheme) && (host == main || isEvery(host)) {
		place.host = told
	}
	return place
}

// isEvery says whether a host to listen on is every interface.
func isEvery(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// address is what to tell others of a listener there.
func (k kvPlace) address(listening net.Addr) (string, error) {
	if tcp, is := listening.(*net.TCPAddr); is && k.advertise == "" && k.host != "" {
		return net.JoinHostPort(k.host, fmt.Sprint(tcp.Port)), nil
	}
	return advertised(k.advertise, listening)
}

// kvEndpoint is where one worker receives KV: a server of its own beside the
// worker's, since bulk data wants other windows and buffers than requests.
type kvEndpoint struct {
	listeners []net.Listener
	// addresses are what tickets name, best first: the socket, which only this host
	// has and on which less is copied, then TCP.
	addresses []string
}

func (e *kvEndpoint) add(listener net.Listener, address string) {
	e.listeners, e.addresses = append(e.listeners, listener), append(e.addresses, address)
}

// listenKV opens an endpoint; l closes its listeners. A socket that was not asked
// for by name, and that cannot be had, is done without.
func listenKV(o KVOptions, place kvPlace, folder *socketFolder, l *listeners, logger *slog.Logger) (*kvEndpoint, error) {
	e := new(kvEndpoint)
	if wanted, needed := o.sockets(); wanted {
		listener, err := folder.listen(o.Socket)
		switch {
		case err == nil:
			l.keep(listener)
			e.add(listener, addressOf(listener.Addr()))
		case needed:
			return nil, fmt.Errorf("--kv-socket: %w", err)
		default:
			logger.Info("kv is received over tcp alone: there is no place for a socket", slog.Any("error", err))
		}
	}
	if o.Transport == TransportUnix {
		return e, nil
	}
	listener, err := kvtransfer.Listen(place.listen)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place.flag, err)
	}
	l.keep(listener)
	address, err := place.address(listener.Addr())
	if err != nil {
		return nil, err
	}
	e.add(listener, address)
	return e, nil
}

// receivesKV is a worker whose receiver wants a server of its own.
type receivesKV interface {
	RegisterKV(registrar grpc.ServiceRegistrar)
	// KVMessageBytes is the largest message that its senders may send; 0: there are
	// none.
	KVMessageBytes() int
}

// addKV serves the receiver of the worker id on its endpoint. It has to be added
// before what uses the receiver, so that it is stopped after it.
func (p *process) addKV(id, role string, e *kvEndpoint, receiver receivesKV, logger *slog.Logger) {
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{
		Name: role + "-kv", Logger: logger, Registerer: p.registry, MaxReceiveBytes: receiver.KVMessageBytes(),
		Unlogged: []string{kvtransferv1.KVTransfer_Stream_FullMethodName},
	}))
	receiver.RegisterKV(server)
	gate := kvtransfer.NewGate(p.options.KV.MaxConnections, logger)
	for _, listener := range e.listeners {
		listener = gate.Limit(listener)
		p.add(lifecycle.Service{
			Name:  id + " kv server, " + listener.Addr().Network(),
			Start: func(context.Context) error { server.SetServing(true); return nil },
			Run:   func(context.Context) error { return server.Serve(listener) },
			Stop:  server.Stop,
		})
	}
	logger.Info("kv is received", slog.Any("addresses", e.addresses))
}

// kvDial dials receivers of KV over the transports that are wanted. A socket that
// this host does not have is passed over before anything is tried: tickets of
// receivers on other hosts name such.
func (p *process) kvDial(cfg rpc.ClientConfig) func(address string) (*grpc.ClientConn, error) {
	wanted := p.options.KV.Transport
	return func(address string) (*grpc.ClientConn, error) {
		path, isUnix := strings.CutPrefix(address, unixScheme)
		switch {
		case isUnix && wanted == TransportTCP, !isUnix && wanted == TransportUnix:
			return nil, fmt.Errorf("passed over, since --kv-transport is %s", wanted)
		case isUnix:
			if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
				return nil, fmt.Errorf("passed over, since this host has no such socket")
			}
		}
		return rpc.Dial(address, cfg)
	}
}
