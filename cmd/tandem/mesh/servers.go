package mesh

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
)

// servers are the embedded etcd and NATS servers; nil where others are used.
type servers struct {
	etcd *embedded.Etcd
	nats *embedded.NATS
	// temporary is a folder that goes with them; empty if the user named one.
	temporary string
}

// startServers starts the embedded etcd and NATS, where no others are named, and
// says in o and up where they are.
func startServers(ctx context.Context, o *UpOptions, up *Up) (*servers, error) {
	s := new(servers)
	if err := s.start(ctx, o, up); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	up.Etcd, up.NATS = o.Etcd, o.NATS
	return s, nil
}

func (s *servers) start(ctx context.Context, o *UpOptions, up *Up) (err error) {
	if len(o.Etcd) == 0 {
		dir := o.DataDir
		if dir == "" {
			if dir, err = os.MkdirTemp("", "tandem-"); err != nil {
				return fmt.Errorf("make a folder for etcd's data: %w: name one with --data-dir", err)
			}
			s.temporary = dir
		}
		starting, cancel := context.WithTimeout(ctx, o.StartTimeout)
		defer cancel()
		if s.etcd, err = embedded.StartEtcd(starting, embedded.EtcdConfig{DataDir: dir, ClientAddress: "127.0.0.1:0"}); err != nil {
			if o.DataDir != "" {
				err = fmt.Errorf("--data-dir: %w", err)
			}
			return err
		}
		o.Etcd, up.EmbeddedEtcd = []string{s.etcd.Endpoint()}, true
	}
	if len(o.NATS) == 0 {
		if s.nats, err = embedded.StartNATS(embedded.NATSConfig{Address: "127.0.0.1:0"}); err != nil {
			return err
		}
		o.NATS, up.EmbeddedNATS = []string{s.nats.URL()}, true
	}
	return nil
}

// stop stops those that run and removes the temporary folder.
func (s *servers) stop() error {
	if s.nats != nil {
		s.nats.Close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	if s.temporary != "" {
		return os.RemoveAll(s.temporary)
	}
	return nil
}
