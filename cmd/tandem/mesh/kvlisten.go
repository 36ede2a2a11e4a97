package mesh

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// kvEndpoint is a worker's server for KV. It is not the worker's main server, since bulk data
// needs other windows and buffers than requests.
type kvEndpoint struct {
	listeners []net.Listener
	// addresses are those that tickets name, best first: the socket, which only this host has
	// and which copies less, then TCP.
	addresses []string
	// pages passes the descriptor of the worker's pages; nil if they are not shared.
	pages *net.UnixListener
}

// pagesSocket is the path of the socket that passes the pages' descriptor; empty without one.
func (e *kvEndpoint) pagesSocket() string {
	if e.pages == nil {
		return ""
	}
	return e.pages.Addr().String()
}

func (e *kvEndpoint) add(listener net.Listener, address string) {
	e.listeners, e.addresses = append(e.listeners, listener), append(e.addresses, address)
}

// listenKV opens an endpoint. If the default socket cannot be opened, the endpoint does without
// it; a socket that was given by name must open. With an error comes what is open already.
func (p *process) listenKV(place kvPlace, role controlv1.Role) (*kvEndpoint, error) {
	o, e := p.options.KV, new(kvEndpoint)
	if wanted, needed := o.Sockets(); wanted {
		listener, err := p.sockets.listen(o.Socket)
		switch {
		case err == nil:
			p.listeners = append(p.listeners, listener)
			e.add(listener, addressOf(listener.Addr()))
			if err := p.listenPages(e, listener.Addr().String(), role); err != nil {
				return e, err
			}
		case needed:
			return e, fmt.Errorf("--kv-socket: %w", err)
		default:
			p.logger.Info("kv is received over tcp only: no folder for a unix socket", slog.Any("error", err))
		}
	}
	if !o.Reaches(false) {
		return e, nil
	}
	listener, err := kvtransfer.Listen(place.listen)
	if err != nil {
		return e, fmt.Errorf("--kv-listen: %w", err)
	}
	p.listeners = append(p.listeners, listener)
	address, err := place.address(listener.Addr())
	e.add(listener, address)
	return e, err
}

// listenPages opens the socket that passes the descriptor of a decode worker's pages, beside the
// socket for its KV.
func (p *process) listenPages(e *kvEndpoint, socket string, role controlv1.Role) error {
	if !p.options.KV.Shares() || role != controlv1.Role_ROLE_DECODE {
		return nil
	}
	listener, err := kvtransfer.ListenPages(socket + ".pages")
	if err != nil {
		return fmt.Errorf("--kv-transport: shm needs a second socket: %w", err)
	}
	p.listeners = append(p.listeners, listener)
	e.pages = listener
	return nil
}

// receivesKV is a worker whose receiver needs its own server.
type receivesKV interface {
	RegisterKV(registrar grpc.ServiceRegistrar)
	// KVMessageBytes is the largest message of its senders; 0 without senders.
	KVMessageBytes() int
}

// sharesKV is a receiver whose pages senders of this host can map.
type sharesKV interface {
	ServePages(ctx context.Context, listener *net.UnixListener) error
}

// kvServices serve the receiver of a worker on its endpoint. They start before the parts that use
// the receiver, so that they stop after those.
func (p *process) kvServices(w *part, role string, receiver receivesKV, logger *slog.Logger) (services []lifecycle.Service) {
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{
		Name: role + "-kv", Logger: logger, Registerer: p.registry, MaxReceiveBytes: receiver.KVMessageBytes(),
		Unlogged: []string{kvtransferv1.KVTransfer_Stream_FullMethodName}, Credentials: w.serverCredentials(true),
	}))
	receiver.RegisterKV(server)
	limit := rpc.NewConnectionLimit(cmp.Or(p.options.KV.MaxConnections, kvtransfer.DefaultMaxConnections), "--kv-max-connections", logger)
	for _, listener := range w.kv.listeners {
		listener = limit.Listener(listener)
		services = append(services, lifecycle.Service{
			Name:  w.id + " kv server, " + listener.Addr().Network(),
			Start: func(context.Context) error { server.SetServing(true); return nil },
			Run:   func(context.Context) error { return server.Serve(listener) },
			Stop:  server.Stop,
		})
	}
	if sharing, can := receiver.(sharesKV); can && w.kv.pages != nil {
		services = append(services, lifecycle.Service{
			Name: w.id + " kv pages",
			Run:  func(ctx context.Context) error { return sharing.ServePages(ctx, w.kv.pages) },
			Stop: func(context.Context) error { return w.kv.pages.Close() },
		})
	}
	logger.Info("kv is received", slog.Any("addresses", w.kv.addresses), slog.String("pages", w.kv.pagesSocket()))
	return services
}

// kvDial dials receivers of KV over the chosen transports. It skips sockets that this host lacks,
// since tickets of receivers on other hosts name their sockets too.
func (p *process) kvDial(cfg rpc.ClientConfig) func(address string) (*grpc.ClientConn, error) {
	kv := p.options.KV
	return func(address string) (*grpc.ClientConn, error) {
		path, isUnix := strings.CutPrefix(address, api.UnixScheme)
		switch {
		case !kv.Reaches(isUnix):
			return nil, fmt.Errorf("not tried, because --kv-transport is %s", kv.Transport)
		case isUnix:
			if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
				return nil, fmt.Errorf("not tried, because this host has no such socket")
			}
		}
		return rpc.Dial(address, cfg)
	}
}

// socketFolder is the private folder of a process for Unix sockets, made with the first of them.
type socketFolder struct {
	folder *tempfolder.Folder // nil before the first socket
	made   int                // number of sockets
}

// listen listens on a socket of the given path, or with kvtransfer.SocketAuto on one in the
// folder.
func (f *socketFolder) listen(socket string) (net.Listener, error) {
	if socket != kvtransfer.SocketAuto {
		return kvtransfer.Listen(api.UnixScheme + socket)
	}
	if f.folder == nil {
		folder, err := tempfolder.Make("kv")
		if err != nil {
			return nil, fmt.Errorf("make a folder for sockets: %w", err)
		}
		f.folder = folder
	}
	listener, err := kvtransfer.Listen(api.UnixScheme + filepath.Join(f.folder.Path, fmt.Sprintf("%d.sock", f.made+1)))
	if err != nil {
		return nil, err
	}
	f.made++
	return listener, nil
}

// close removes the folder, including sockets that still listen.
func (f *socketFolder) close() error {
	folder := f.folder
	f.folder = nil
	if err := folder.Remove(); err != nil {
		return fmt.Errorf("remove the folder of sockets: %w", err)
	}
	return nil
}
