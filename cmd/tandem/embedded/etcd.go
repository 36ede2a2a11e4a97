// Package embedded runs etcd and NATS servers inside the process: the real
// servers, as Go libraries, on loopback.
//
// Only cmd/tandem, for 'tandem up', 'tandem bench' and its tests, and tests of the integration
// module may import it; everything else reaches etcd and NATS over the network. It owns the
// servers' goroutines, which Close ends. Both servers are silent.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tandem-serving/tandem/pkg/identity"
)

const (
	// etcdTickMs and etcdElectionMs are short, since the only member has nobody
	// to wait for.
	etcdTickMs     = 50
	etcdElectionMs = 500
)

// EtcdConfig says how to run etcd.
type EtcdConfig struct {
	// DataDir holds its data, made if it is not there. A server that is started
	// on the data of another goes on where that one stopped.
	DataDir string
	// Port of 127.0.0.1 is where it serves clients; 0: any that is free.
	Port int
	// TLS are the files of the server's certificate and of the authorities that clients'
	// certificates must be of. The zero value: whoever reaches it may do all.
	TLS identity.Config
}

// Etcd is a running etcd server, the only member of its cluster.
type Etcd struct {
	server   interface{ Close() } // an *embed.Etcd, but for tests
	lock     *os.File
	failed   *failure
	endpoint string
	close    sync.Once
}

// StartEtcd starts etcd and waits until it serves, or ctx ends. The caller
// closes it. The error is one line that says what to do when the port is taken,
// and when the data are not those of an etcd or are damaged. If ctx ends first, on a slow
// disk, etcd may be left behind.
func StartEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	if cfg.DataDir == "" {
		return nil, errors.New("start etcd: no data directory is given")
	}
	client := url.URL{Scheme: "http", Host: loopback(cfg.Port)}
	if cfg.TLS.Enabled() {
		client.Scheme = "https"
	}
	// A single member has no peers, and listens for none: who reaches that port may propose any
	// write, without a certificate. It has to have an address all the same.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}

	config := embed.NewConfig()
	config.Name = "tandem"
	config.Dir = filepath.Join(cfg.DataDir, "etcd")
	config.ListenClientUrls = []url.URL{client}
	config.AdvertiseClientUrls = []url.URL{client}
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	if cfg.TLS.Enabled() {
		config.ClientTLSInfo = transport.TLSInfo{
			CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile, TrustedCAFile: cfg.TLS.CAFile, ClientCertAuth: true,
		}
	}
	// Its gateway from JSON to gRPC would take writes from web pages, too.
	config.EnableGRPCGateway = false
	config.TickMs = etcdTickMs
	config.ElectionMs = etcdElectionMs
	config.AutoCompactionMode = embed.CompactorModePeriodic
	config.AutoCompactionRetention = "1h"
	failed := newFailure()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(failed.logger())
	// A load report of the machine every five seconds is no news here.
	config.Metrics = "basic"

	lock, err := lockData(cfg.DataDir)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("start etcd: the data directory %s is in use: stop the process that uses it, or choose another", cfg.DataDir)
	}
	if err != nil {
		return nil, explainData(cfg, cfg.DataDir, err)
	}
	server, err := failed.start(ctx, config)
	if err != nil {
		_ = lock.Close()
		if errors.Is(err, ctx.Err()) {
			return nil, explain("etcd", cfg.Port, err)
		}
		return nil, explainData(cfg, config.Dir, err)
	}
	e := &Etcd{server: server, lock: lock, failed: failed}
	select {
	case <-server.Server.ReadyNotify():
		e.endpoint = client.Scheme + "://" + server.Clients[0].Addr().String()
		return e, nil
	case <-failed.happened:
		e.Close()
		return nil, explainData(cfg, config.Dir, failed.err)
	case err = <-server.Err():
	case <-server.Server.StopNotify():
		err = errors.New("it stopped before it was ready")
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.Close()
	return nil, explain("etcd", cfg.Port, err)
}

// Endpoint is the URL for clients.
func (e *Etcd) Endpoint() string { return e.endpoint }

// Run waits until ctx ends, or etcd fails for good: that is the error, and the
// server is of no use then.
func (e *Etcd) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.failed.happened:
		err := e.failed.err
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return fmt.Errorf("no space is left on the disk of its data: %w", err)
		}
		return fmt.Errorf("is the disk of its data broken? %w", err)
	}
}

// Close stops the server and waits for it, unless it has failed or fails now: parts
// of it may be gone, and it could wait for them for ever. Its data stays.
func (e *Etcd) Close() {
	e.close.Do(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			select {
			case <-e.failed.happened:
			default:
				e.server.Close()
			}
		}()
		select {
		case <-closed:
		case <-e.failed.happened:
		}
		// Closing unlocks; nothing was written.
		_ = e.lock.Close()
	})
}

// lockData makes the directory this process's own. Without it etcd would wait
// for ever, and without a word, for another process to close its database.
func lockData(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "etcd.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// explainData explains why etcd did not start: but for a port that is taken, and for what
// the system refuses, it is what lies in its directory dir.
func explainData(cfg EtcdConfig, dir string, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	// Some of what etcd says has lost its cause on the way.
	because := func(cause syscall.Errno) bool {
		return errors.Is(err, cause) || strings.HasSuffix(text, cause.Error())
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return explain("etcd", cfg.Port, err)
	case because(syscall.EMFILE) || strings.Contains(text, "file descriptor limit"):
		return fmt.Errorf("start etcd: this process may not open enough files (%s): raise the limit, such as by 'ulimit -n 65536', and start again", text)
	case because(syscall.ENFILE):
		return fmt.Errorf("start etcd: this machine has too many files open (%s): end other programs, or raise its limit, fs.file-max", text)
	case because(syscall.ENOSPC) || because(syscall.EDQUOT):
		return fmt.Errorf("start etcd: no space is left for its data in %s (%s): free some, etcd takes at least %.0f MB, or choose another data directory", dir, text, newEtcdBytes/1e6)
	case because(syscall.EACCES) || because(syscall.EPERM) || because(syscall.EROFS):
		return fmt.Errorf("start etcd: it may not write to %s (%s): let this user write there, or choose another data directory", dir, text)
	}
	if dir == cfg.DataDir { // nothing of etcd's lies there yet
		return fmt.Errorf("start etcd: %s cannot be its data directory (%s): choose another", dir, text)
	}
	return fmt.Errorf("start etcd: it cannot use the data in %s (%s): move that folder away, or choose another data directory", dir, text)
}

// loopback is the address of a port: only this machine reaches these servers.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func explain(server string, port int, err error) error {
	address := loopback(port)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("start %s on %s: the address is already in use: stop the process that listens there, or choose another address: %w",
			server, address, syscall.EADDRINUSE)
	}
	return fmt.Errorf("start %s on %s: %w", server, address, err)
}
