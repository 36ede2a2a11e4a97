package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// rawWrites are the sizes of the writes, and of the reads, of plain copies: CONTRACT
// takes the best of these.
func rawWrites() []int { return []int{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} }

// raw copies memory over plain connections: what the protocol is measured against.
type raw struct {
	from, to []byte
	write    int
	clients  []net.Conn
	servers  []net.Conn
}

func newRaw(ctx context.Context, from, to []byte, transport, dir string, connections, write int) (_ *raw, err error) {
	r := &raw{from: from, to: to, write: write}
	address := "127.0.0.1:0"
	if transport == Unix {
		address = filepath.Join(dir, fmt.Sprintf("raw-%d.sock", write))
	}
	listener, err := net.Listen(transport, address)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for range connections {
		client, err := new(net.Dialer).DialContext(ctx, transport, listener.Addr().String())
		if err != nil {
			return nil, err
		}
		r.clients = append(r.clients, client)
		server, err := listener.Accept()
		if err != nil {
			return nil, err
		}
		r.servers = append(r.servers, server)
	}
	return r, nil
}

func (r *raw) close() {
	for _, conn := range append(r.clients, r.servers...) {
		_ = conn.Close() // nobody waits for what is in it
	}
}

// copy moves bytes, each connection its share of them, out of its share of the memory
// into the same share, over and over. It takes until the last byte was read.
func (r *raw) copy(ctx context.Context, bytes int64) (took time.Duration, err error) {
	began := time.Now()
	stop := context.AfterFunc(ctx, r.close)
	defer stop()
	share := len(r.from) / len(r.clients)
	errs := make([]error, 2*len(r.clients))
	var tasks sync.WaitGroup
	for i := range r.clients {
		n := bytes / int64(len(r.clients))
		if i == 0 {
			n += bytes % int64(len(r.clients))
		}
		from, to := r.from[i*share:(i+1)*share], r.to[i*share:(i+1)*share]
		tasks.Go(func() { errs[2*i] = over(from, r.write, n, r.clients[i].Write) })
		tasks.Go(func() { errs[2*i+1] = over(to, r.write, n, r.servers[i].Read) })
	}
	tasks.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("plain copy: %w", err)
	}
	return time.Since(began), nil
}

// over calls do with neighbouring pieces of memory, at most size long, round and
// round, until it has done n bytes.
func over(memory []byte, size int, n int64, do func([]byte) (int, error)) error {
	for at := 0; n > 0; {
		end := min(at+size, len(memory), at+int(min(n, int64(size))))
		done, err := do(memory[at:end])
		if err != nil {
			return err
		}
		if done == 0 {
			return io.ErrNoProgress
		}
		n -= int64(done)
		if at += done; at == len(memory) {
			at = 0
		}
	}
	return nil
}

const tries = 3

// plainCopy is a way of copying memory, in pieces of one size.
type plainCopy interface {
	copy(ctx context.Context, bytes int64) (took time.Duration, err error)
	close()
}

func (b *Bench) plainCopy(ctx context.Context, transport string, write int) (plainCopy, error) {
	if transport == Shm {
		return inMemory{from: b.from.Bytes(), to: b.to.Bytes(), piece: write}, nil
	}
	return newRaw(ctx, b.from.Bytes(), b.to.Bytes(), transport, b.dir, b.plan.Connections, write)
}

// inMemory copies from memory to memory, on one core: the least that moving KV into another
// process's pages takes. Nobody reads what it wrote.
type inMemory struct {
	from, to []byte
	piece    int
}

func (inMemory) close() {}

func (m inMemory) copy(ctx context.Context, bytes int64) (took time.Duration, err error) {
	began, at := time.Now(), 0
	err = over(m.from, m.piece, bytes, func(piece []byte) (int, error) {
		n := copy(m.to[at:], piece)
		if at += n; at == len(m.to) {
			at = 0
		}
		return n, ctx.Err()
	})
	return time.Since(began), err
}

// plain are contenders that copy plainly: the best two of all sizes of writes, found
// by short tries of each, since a round of all would take most of the time. The tries
// go round the sizes, so that what disturbs the machine disturbs all.
func (b *Bench) plain(ctx context.Context, transport string) (best []contender, closeAll func(), err error) {
	var open []plainCopy
	closeAll = func() {
		for _, r := range open {
			r.close()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	var all []contender
	for _, write := range rawWrites() {
		r, err := b.plainCopy(ctx, transport, write)
		if err != nil {
			return nil, nil, err
		}
		open = append(open, r)
		all = append(all, contender{name: fmt.Sprintf("plain %s %dKiB", transport, write>>10), run: func(ctx context.Context) (int64, time.Duration, error) {
			took, err := r.copy(ctx, b.plan.Bytes)
			return b.plan.Bytes, took, err
		}})
	}
	for try := range tries + 1 {
		for i, r := range open {
			short := max(b.plan.Bytes/8, int64(rawWrites()[i]))
			took, err := r.copy(ctx, short)
			if err != nil {
				return nil, nil, err
			}
			if try > 0 { // at first the connection is new
				all[i].tried = max(all[i].tried, float64(short)/1e9/took.Seconds())
			}
		}
	}
	slices.SortFunc(all, func(a, b contender) int { return cmp.Compare(b.tried, a.tried) })
	return all[:2], closeAll, nil
}
