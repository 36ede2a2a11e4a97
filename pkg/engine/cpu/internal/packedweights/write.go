package packedweights

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

// syncBytes is how much is written between two syncs: what waits for the disk is
// memory that others want, and a file that grows is none that sweep takes.
const syncBytes = 256 << 20

// Write keeps parts as the weights that id names. The file appears whole or not at
// all, also where the machine stops; one of that name that was there is replaced, and
// who reads it reads on. progress hears on the caller's goroutine of the bytes that
// are done. The context is looked at between chunks.
func (f Folder) Write(ctx context.Context, id Identity, parts [][]byte, progress func(done, total int64)) error {
	f = f.complete()
	if err := id.check(); err != nil {
		return fmt.Errorf("write packed weights: %w", err)
	}
	if err := f.write(ctx, id, newStream(parts), progress); err != nil {
		return fmt.Errorf("write packed weights to %s: %w", f.Path, err)
	}
	return nil
}

func (f Folder) write(ctx context.Context, id Identity, s stream, progress func(done, total int64)) (err error) {
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		return err
	}
	f.sweep()
	need := headerBytes(len(id.text()), s.bytes) + s.bytes
	// So that a disk is not full, for others too, until the write fails.
	if free, err := f.Free(f.Path); err != nil {
		return err
	} else if free < need {
		return fmt.Errorf("only %d MB are free, but the weights need %d MB: free some space, or name a folder on another disk", free/1e6, (need+1e6-1)/1e6)
	}
	h := header{identity: id.text(), bytes: s.bytes, sums: make([]uint32, chunks(s.bytes))}
	err = parallel.Do(ctx, f.Threads, chunks(s.bytes), func(i int64) error {
		return s.each(i, func(piece []byte, _ int64) error {
			h.sums[i] = crc32.Update(h.sums[i], castagnoli, piece)
			return nil
		})
	}, func(int64) {})
	if err != nil {
		return err
	}
	file, err := f.Create(f.Path, "."+id.FileName()+".*"+temporary)
	if err != nil {
		return err
	}
	err = fill(ctx, file, h, s, progress)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(f.Path, id.FileName()))
	}
	if err != nil {
		_ = os.Remove(file.Name()) // if not, sweep will
	}
	return err
}

// fill writes all of a file, down to the disk.
func fill(ctx context.Context, file File, h header, s stream, progress func(done, total int64)) error {
	if _, err := file.Write(h.encode()); err != nil {
		return err
	}
	for i := range chunks(s.bytes) {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.each(i, func(piece []byte, _ int64) error {
			_, err := file.Write(piece)
			return err
		})
		if err != nil {
			return err
		}
		_, end := s.bounds(i)
		if end%syncBytes == 0 {
			if err := file.Sync(); err != nil {
				return err
			}
		}
		progress(end, s.bytes)
	}
	return file.Sync()
}
