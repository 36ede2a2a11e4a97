package gpu

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

// reader copies the pages of a prompt to the host, over and over.
type reader struct {
	pages  engine.Pages
	layers int
	blocks []kvcache.BlockID
	buffer []byte // of a layer
}

func newReader(e engine.Engine, blocks []kvcache.BlockID) *reader {
	return &reader{e.Pages(), e.Model().Layers, blocks, make([]byte, len(blocks)*e.Pages().Layout().SliceBytes)}
}

// chunks reads as a transfer does: a chunk at a time, into staging buffers if the pages have
// some.
func (r *reader) chunks() error {
	slice := r.pages.Layout().SliceBytes
	for layer := range r.layers {
		for blocks := range slices.Chunk(r.blocks, max(kvtransfer.DefaultMaxChunkBytes/slice, 1)) {
			if err := r.chunk(layer, blocks, len(blocks)*slice); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reader) chunk(layer int, blocks []kvcache.BlockID, bytes int) error {
	to := r.buffer
	if staging, has := r.pages.(engine.Staging); has {
		if memory, release := staging.Stage(bytes); memory != nil {
			defer release()
			to = memory
		}
	}
	return r.pages.Read(layer, blocks, to[:bytes])
}

// plain reads into other memory, a layer at a time.
func (r *reader) plain() error {
	for layer := range r.layers {
		if err := r.pages.Read(layer, r.blocks, r.buffer); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) bytes() int { return r.layers * len(r.buffer) }

// readAlone is how many bytes a second readers copy together while nothing else runs,
// each the prompt once after all have done so.
func readAlone(readers []*reader, read func(*reader) error) (float64, error) {
	all := func() error {
		failures := make([]error, len(readers))
		var wait sync.WaitGroup
		for i, r := range readers {
			wait.Go(func() { failures[i] = read(r) })
		}
		wait.Wait()
		return errors.Join(failures...)
	}
	if err := all(); err != nil { // so that every page of memory is there
		return 0, err
	}
	began := time.Now()
	if err := all(); err != nil {
		return 0, err
	}
	return float64(len(readers)*readers[0].bytes()) / time.Since(began).Seconds(), nil
}

// readBeside decodes while readers copy, and gives the steps and how many bytes a second
// were copied meanwhile.
func readBeside(ctx context.Context, readers []*reader, d *decoder, count int) (s steps, rate float64, err error) {
	var stop atomic.Bool
	var copied atomic.Int64
	failures := make([]error, len(readers))
	began := time.Now()
	var wait sync.WaitGroup
	for i, r := range readers {
		wait.Go(func() {
			for failures[i] == nil {
				if failures[i] = r.chunks(); failures[i] == nil {
					copied.Add(int64(r.bytes()))
				}
				if stop.Load() {
					return
				}
			}
		})
	}
	s, err = d.run(ctx, d.context, count)
	stop.Store(true)
	wait.Wait() // the last copies count with the time that they take
	rate = float64(copied.Load()) / time.Since(began).Seconds()
	return s, rate, errors.Join(append(failures, err)...)
}
