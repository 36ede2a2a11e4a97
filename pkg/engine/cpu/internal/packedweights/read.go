package packedweights

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

// Read fills parts with the weights that id names, and checks every byte. progress
// hears on the caller's goroutine of the bytes that are done. Without a file the error
// is fs.ErrNotExist; any other says what is wrong with the file, or is ctx's, which is
// looked at between chunks. Parts that were zero are zero again after any error but ctx's.
func (f Folder) Read(ctx context.Context, id Identity, parts [][]byte, progress func(done, total int64)) error {
	f = f.complete()
	if err := id.check(); err != nil {
		return fmt.Errorf("read packed weights: %w", err)
	}
	f.sweep()
	path := filepath.Join(f.Path, id.FileName())
	// A pipe of that name must not make it wait.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read packed weights: %w", err)
	}
	defer file.Close()
	if err := f.read(ctx, file, id, newStream(parts), progress); err != nil {
		return fmt.Errorf("read packed weights %s: %w", path, err)
	}
	return nil
}

func (f Folder) read(ctx context.Context, file *os.File, id Identity, s stream, progress func(done, total int64)) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	h, err := decode(file, info.Size())
	if err != nil {
		return err
	}
	if h.identity != id.text() || h.bytes != s.bytes {
		return fmt.Errorf("it holds %d bytes of %q, not %d of %q", h.bytes, h.identity, s.bytes, id.text())
	}
	start := info.Size() - h.bytes
	var done int64
	err = parallel.Do(ctx, f.Threads, chunks(s.bytes), func(i int64) error {
		var sum uint32
		err := s.each(i, func(piece []byte, at int64) error {
			if _, err := file.ReadAt(piece, start+at); err != nil {
				if errors.Is(err, io.EOF) {
					return errors.New("it became shorter while it was read")
				}
				return err
			}
			sum = crc32.Update(sum, castagnoli, piece) // while the cache has it
			return nil
		})
		if err == nil && sum != h.sums[i] {
			first, end := s.bounds(i)
			err = fmt.Errorf("it is damaged between bytes %d and %d: the checksum differs", start+first, start+end)
		}
		return err
	}, func(i int64) {
		first, end := s.bounds(i)
		done += end - first
		progress(done, s.bytes)
	})
	if err != nil && ctx.Err() == nil {
		for _, p := range s.parts {
			clear(p)
		}
	}
	return err
}
