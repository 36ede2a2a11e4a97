package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-serving/tandem/pkg/identity"
)

const (
	natsStartTimeout = 10 * time.Second
	// natsHandshakeSeconds bounds a client's handshake.
	natsHandshakeSeconds = 5
)

// NATSConfig says how to run NATS.
type NATSConfig struct {
	// Port of 127.0.0.1 is where it serves clients; 0: any that is free.
	Port int
	// TLS are the files of the server's certificate and of the authorities that clients'
	// certificates must be of. The zero value: whoever reaches it may do all.
	TLS identity.Config
}

// NATS is a running NATS server without storage.
type NATS struct {
	server *server.Server
	close  sync.Once
}

// StartNATS starts a NATS server and waits until it serves. The caller closes
// it. The error says what to do when the port is taken.
func StartNATS(cfg NATSConfig) (*NATS, error) {
	// The server says of a taken port only that it is not ready; asking first
	// gives the reason at once.
	probe, err := net.Listen("tcp", loopback(cfg.Port))
	if err != nil {
		return nil, explain("NATS", cfg.Port, err)
	}
	if err := probe.Close(); err != nil {
		return nil, explain("NATS", cfg.Port, err)
	}
	options := &server.Options{
		ServerName: "tandem",
		Host:       "127.0.0.1",
		Port:       cmp.Or(cfg.Port, server.RANDOM_PORT),
		NoLog:      true,
		NoSigs:     true, // signals are the process's own
	}
	if cfg.TLS.Enabled() {
		source, err := identity.Open(cfg.TLS, nil)
		if err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
		options.TLS, options.TLSVerify, options.TLSTimeout = true, true, natsHandshakeSeconds
		options.TLSConfig = source.ServerTLS(true)
	}
	instance, err := server.NewServer(options)
	if err != nil {
		return nil, explain("NATS", cfg.Port, err)
	}
	n := &NATS{server: instance}
	instance.Start()
	if !instance.ReadyForConnections(natsStartTimeout) {
		n.Close()
		return nil, explain("NATS", cfg.Port, errors.New("it does not take connections"))
	}
	return n, nil
}

// URL is the address for clients.
func (n *NATS) URL() string { return n.server.ClientURL() }

// Close stops the server and waits for it.
func (n *NATS) Close() {
	n.close.Do(func() {
		n.server.Shutdown()
		n.server.WaitForShutdown()
	})
}
