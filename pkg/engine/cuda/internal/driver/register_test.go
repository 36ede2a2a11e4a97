package driver_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// mapped is memory outside the Go heap.
func mapped(t *testing.T, bytes int) []byte {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}

// Memory of the caller is pinned, copied to and from, unpinned, and then the caller's still.
func TestRegisteredMemory(t *testing.T) {
	b := newBench(t)
	memory := mapped(t, 8192)
	for i := range memory {
		memory[i] = byte(i * i)
	}
	want := bytes.Clone(memory[100:1100])
	s, p, x := b.stream(), b.program(), b.floats(1000)
	for range 2 {
		host, err := b.device.RegisterHost(memory)
		if err != nil {
			t.Fatal(err)
		}
		if &host.Bytes()[0] != &memory[0] || len(host.Bytes()) != len(memory) {
			t.Error("the pinned memory is another")
		}
		p.Reset()
		p.CopyIn(x, host, 100, 1000)
		p.CopyOut(host, 5000, x, 1000)
		b.run(s, p)
		if !bytes.Equal(memory[5000:6000], want) {
			t.Error("what came back is not what went in")
		}
		for range 2 {
			if err := host.Free(); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, "copy out", s.Submit(p))
		clear(memory[5000:]) // it is there
	}
}

func TestRegisterRefuses(t *testing.T) {
	b := newBench(t)
	_, err := b.device.RegisterHost(nil)
	says(t, err, "at least one")
	memory := mapped(t, 8192)
	host, err := b.device.RegisterHost(memory)
	must(b, (*driver.Host).Free, host, err)
	_, err = b.device.RegisterHost(memory)
	says(t, err, "pin 8192 bytes", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)")
}

// The emulated driver does not wait for copies when memory is unpinned: a copy that comes
// too late shows.
func TestUnpinnedTooEarly(t *testing.T) {
	b := newEmulated(t)
	host, err := b.device.RegisterHost(mapped(t, 4096))
	if err != nil {
		t.Fatal(err)
	}
	s, p, x := b.stream(), b.program(), b.floats(1)
	p.CopyOut(host, 0, x, 4)
	if err := s.Submit(p); err != nil {
		t.Fatal(err)
	}
	if err := host.Free(); err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(); err == nil {
		t.Error("the device wrote to memory that is not pinned any more")
	}
	b.restart()
}
