package cpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/packedweights"
	"github.com/tandem-serving/tandem/pkg/model"
)

// load packs the weights of m, or reads them where they are kept packed. What is wrong
// with that folder costs time, not the start.
func (w *Weights) load(ctx context.Context, m *model.Model, config Config) error {
	if config.WeightCache == "" {
		return w.pack(ctx, m, config.Progress)
	}
	folder := packedweights.Folder{Path: config.WeightCache, Threads: config.Threads}
	err := w.restore(ctx, folder, config.Progress)
	switch {
	case err == nil:
		w.cached = true
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.Is(err, fs.ErrNotExist):
		config.Warn(fmt.Errorf("%w: packing them again", err))
	}

	var before int64
	keep := w.Bytes()
	err = w.pack(ctx, m, func(done, total int64) {
		before = total
		config.Progress(done, total+keep)
	})
	if err != nil {
		return err
	}
	err = folder.Write(ctx, w.identity(), w.packed.Parts(), func(done, total int64) {
		if done < total {
			config.Progress(before+done, before+keep)
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		config.Warn(fmt.Errorf("%w: the next start will pack them again", err))
	}
	config.Progress(before+keep, before+keep)
	return nil
}

// restore reads the weights that folder keeps.
func (w *Weights) restore(ctx context.Context, folder packedweights.Folder, progress func(done, total int64)) error {
	if err := folder.Read(ctx, w.identity(), w.packed.Parts(), progress); err != nil {
		return err
	}
	for i := range w.spec.Layers {
		if err := w.packed.SetWindow(i, w.spec.Window(i)); err != nil {
			return err
		}
	}
	return nil
}

// identity is what the packed bytes follow from: the instruction set and the number of
// threads are not among it.
func (w *Weights) identity() packedweights.Identity {
	s := w.spec
	return packedweights.Identity{
		Digest: s.Digest, Type: string(w.kind), Packing: kernels.PackingVersion,
		Shape: fmt.Sprintf("hidden=%d layers=%d heads=%d kvheads=%d headsize=%d ffn=%d vocabulary=%d tied=%t qkvbias=%t qknorm=%t",
			s.HiddenSize, s.Layers, s.Heads, s.KVHeads, s.HeadSize, s.FFNSize, s.VocabSize, s.TiedEmbeddings, s.QKVBias, s.QKNorm),
	}
}

// FromCache reports whether they were read packed, from Config.WeightCache.
func (w *Weights) FromCache() bool { return w.cached }
