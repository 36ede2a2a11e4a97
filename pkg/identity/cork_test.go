package identity_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pkg/identity"
)

// counted counts the writes of a connection.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestBulkWrites: what is written arrives whatever its size, and much of it in few system calls.
func TestBulkWrites(t *testing.T) {
	f := newFiles(t)
	server, client := f.source(identity.Decode).Server(true), f.source(identity.Prefill).Peer(identity.Decode)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sizes := []int{1, 100, 16 << 10, 32 << 10, 32<<10 + 1, 256 << 10, 256<<10 + 17, 1 << 20, 7}
	random := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for _, n := range sizes {
		for range n {
			text = append(text, byte(random.Uint32()))
		}
	}
	arrived := make(chan []byte, 1)
	go func() {
		defer close(arrived)
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		conn, _, err := server.ServerHandshake(raw)
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn) // up to what went wrong
		arrived <- all
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	below := &counted{Conn: raw}
	conn, _, err := client.ClientHandshake(t.Context(), "localhost:1", below)
	if err != nil {
		t.Fatal(err)
	}
	rest := text
	for _, n := range sizes {
		before := below.writes.Load()
		if m, err := conn.Write(rest[:n]); m != n || err != nil {
			t.Fatalf("%d of %d bytes, %v", m, n, err)
		}
		rest = rest[n:]
		if calls, most := below.writes.Load()-before, int64(2+n/(128<<10)); n > 32<<10 && calls > most {
			t.Errorf("%d bytes took %d writes, want at most %d", n, calls, most)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if got := <-arrived; !bytes.Equal(got, text) {
		t.Errorf("%d other bytes arrived than the %d sent", len(got), len(text))
	}
	if _, err := conn.Write(text); err == nil {
		t.Error("a closed connection takes bytes")
	}
}
