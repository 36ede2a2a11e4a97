package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// handshakeResult is a worker that has answered.
type handshakeResult struct {
	conn   *grpc.ClientConn
	record *controlv1.WorkerRecord // what it says of itself
	blocks []routing.BlocksListed  // its prefix cache; none: not known
}

// unansweredBurst is how many workers that do not answer are named in one go; of more it is
// said how many there were.
const (
	unansweredBurst = 15
	unansweredEvery = 10 * time.Second
)

// complain says why a worker is not connected: to the policy if tell, and to people if log,
// but not of too many workers.
func (p *Pool) complain(logger *slog.Logger, ref routing.Ref, tell, log bool, why string) {
	// What a stranger answers is in it, which may be long and not UTF-8.
	const most = 256
	why = strings.ToValidUTF8(why[:min(len(why), most)], "")
	if tell {
		p.notify(routing.ConnectFailed{Worker: ref, Why: why})
	}
	if !log {
		return
	}
	p.mu.Lock()
	unsaid, due := p.unanswered.Due(time.Now())
	p.mu.Unlock()
	if due {
		logger.Warn("worker is in etcd but not connected", slog.String("error", why), slog.Int("unsaid", unsaid))
	}
}

// sleep waits, but not once the addresses of the worker have changed.
func (m *member) sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-m.moved:
	}
}

// attempt tries the worker's addresses, when it is its turn.
func (p *Pool) attempt(ctx context.Context, turn *dialLimiter, ref routing.Ref, role controlv1.Role, m *member) (*handshakeResult, error) {
	if !turn.enter(ctx) {
		return nil, ctx.Err()
	}
	defer turn.leave()
	p.mu.Lock()
	addresses := m.addresses
	p.mu.Unlock()
	last := errors.New("its record has no address")
	for _, candidate := range addresses {
		conn, err := p.dial(candidate)
		if err != nil {
			last = err
			continue
		}
		found, err := p.meet(ctx, ref, role, conn)
		if err == nil {
			return found, nil
		}
		last = fmt.Errorf("connect to %s: %w", candidate, err)
		_ = conn.Close() // the error says only that it is closed
	}
	return nil, last
}

// meet connects and checks who answers: a record in etcd can name any address, and a
// restarted worker may listen where the old one did.
func (p *Pool) meet(ctx context.Context, ref routing.Ref, role controlv1.Role, conn *grpc.ClientConn) (*handshakeResult, error) {
	if err := p.ready(ctx, conn); err != nil {
		return nil, err
	}
	record, certificate, err := identify(ctx, conn)
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, errors.New("another process answers at its address: not a worker, or one of an earlier version")
	case err != nil:
		return nil, fmt.Errorf("it does not identify itself: %w", err)
	case record.GetId() == ref.ID && record.GetRole() == role && record.GetEpoch() != ref.Epoch:
		return nil, errors.New("another start of this worker answers at its address than the record names")
	case record.GetId() != ref.ID || record.GetRole() != role:
		return nil, fmt.Errorf("another worker answers at its address: %q", clienterr.Shorten(record.GetId()))
	}
	if err := vouch(certificate, ref.ID, role); err != nil {
		return nil, err
	}
	found := &handshakeResult{conn: conn, record: record}
	select {
	case p.lists <- struct{}{}:
	default: // others are asked; the policy asks for it later
		return found, nil
	}
	blocks, err := listBlocks(ctx, conn)
	<-p.lists
	switch {
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded, ctx.Err() != nil:
		return nil, err
	case err != nil:
		p.log.Warn("prefix cache of worker is not known", slog.String("worker", ref.ID), slog.Any("error", err))
	case blocks.GetEpoch() == ref.Epoch:
		found.blocks = routing.Listed(ref, blocks)
	}
	return found, nil
}

// identifyTimeout bounds Identify.
const identifyTimeout = 2 * time.Second

// identify asks a worker who it is, and what its certificate says of that.
func identify(ctx context.Context, conn *grpc.ClientConn) (*controlv1.WorkerRecord, credentials.AuthInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var worker peer.Peer
	response, err := workerv1.NewWorkerClient(conn).Identify(ctx, &workerv1.IdentifyRequest{}, grpc.Peer(&worker))
	return response.GetRecord(), worker.AuthInfo, err
}

// vouch holds a record against the certificate of who answers, where there is one: anybody who
// can write to etcd can write a record, and answer Identify as it says.
func vouch(certificate credentials.AuthInfo, id string, role controlv1.Role) error {
	if !identity.Secured(certificate) {
		return nil
	}
	if who, known := identity.FromAuthInfo(certificate); !known || !who.Covers(identity.Role(api.Name(role)), id) {
		return fmt.Errorf("its certificate is that of %q, which is not for a %s worker of this name", clienterr.Shorten(who.String()), api.Name(role))
	}
	return nil
}
