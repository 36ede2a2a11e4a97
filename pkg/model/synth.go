package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/tandem-serving/tandem/pkg/diskspace"
	"github.com/tandem-serving/tandem/pkg/parallel"
)

// defaultShardBytes is how much of the weights Hugging Face puts into one file.
const defaultShardBytes = 5_000_000_000

// synthChunkBytes is what a worker generates and writes at a time, and so all
// the memory that it needs.
const synthChunkBytes = 4 << 20

// SynthOptions are the choices of Synthesize. The zero value is good.
type SynthOptions struct {
	// Seed of the random weights.
	Seed uint64
	// ShardBytes is the most bytes of weights in one file (a single tensor may
	// be larger); 0 means 5 GB.
	ShardBytes int64
	// Progress, if set, hears how many bytes of weights are written: stage
	// "write". It is called by the goroutine that called Synthesize.
	Progress func(stage string, done, total int64)
}

// Synthesize writes a model of random weights to dir, which must be empty or
// not exist: the same bytes for the same shape and seed, on any machine. It
// needs a few megabytes of memory, and first checks that the disk has as much.
// config.json comes last, so a directory that is not finished cannot be opened.
// After an error the files are gone again, and so is dir if it did not exist.
func Synthesize(ctx context.Context, dir string, shape Shape, opts SynthOptions) (err error) {
	config, spec, err := shape.config()
	if err != nil {
		return err
	}
	if opts.ShardBytes <= 0 {
		opts.ShardBytes = defaultShardBytes
	}
	created, err := claimDirectory(dir)
	if err != nil {
		return err
	}
	w := &synthWriter{dir: dir, spec: spec, opts: opts}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.undo(created))
		}
	}()
	if err := checkDisk(dir, spec); err != nil {
		return err
	}
	if err := w.weights(ctx); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		make func(Shape) ([]byte, error)
	}{
		{"tokenizer.json", synthTokenizer},
		{"tokenizer_config.json", synthTokenizerConfig},
		{generationFile, synthGenerationConfig},
	} {
		data, err := file.make(shape)
		if err != nil {
			return err
		}
		if err := w.small(file.name, data); err != nil {
			return err
		}
	}
	return w.small(configFile, config)
}

// claimDirectory makes dir, or sees that it is empty.
func claimDirectory(dir string) (created bool, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return false, fmt.Errorf("make the model's directory: %w", err)
		}
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read the model's directory: %w", err)
	case len(entries) > 0:
		return false, fmt.Errorf("%s is not empty: name a new directory, or empty this one", dir)
	}
	return false, nil
}

// checkDisk compares the weights, and a little for the rest, with the free disk.
func checkDisk(dir string, spec Spec) error {
	free, err := diskspace.Free(dir)
	if err != nil {
		return err
	}
	const rest = 64 << 20
	if need := spec.Parameters()*2 + rest; free < need {
		return fmt.Errorf("%s: only %d MB are free, but the model needs %d MB: free some space, or name a directory on another disk", dir, free/1e6, need/1e6)
	}
	return nil
}

// synthWriter writes the files of one model and remembers them.
type synthWriter struct {
	dir   string
	spec  Spec
	opts  SynthOptions
	files []string
}

// undo removes what was written.
func (w *synthWriter) undo(created bool) error {
	var errs []error
	for _, path := range w.files {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if created {
		errs = append(errs, os.Remove(w.dir))
	}
	return errors.Join(errs...)
}

// create makes a file, which must not exist.
func (w *synthWriter) create(name string) (*os.File, error) {
	path := filepath.Join(w.dir, name)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("write the model: %w", err)
	}
	w.files = append(w.files, path)
	return file, nil
}

// finish brings a file to the disk, so that config.json is never there before it.
func finish(file *os.File, err error) error {
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", file.Name(), err)
	}
	return nil
}

// small writes a file under another name first, so that it is whole or not there.
func (w *synthWriter) small(name string, data []byte) error {
	file, err := w.create(name + ".partial")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := finish(file, err); err != nil {
		return err
	}
	path := filepath.Join(w.dir, name)
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write the model: %w", err)
	}
	w.files = append(w.files, path)
	return nil
}

// shard is one file of weights.
type shard struct {
	name  string
	slots []slot
}

// synthChunk is a part of one tensor.
type synthChunk struct {
	from *source
	// offset counts bytes from the tensor's start, at from the file's.
	offset, at int64
	bytes      int
}

func slotBytes(s slot) int64 {
	n := int64(BF16.Bytes())
	for _, d := range s.shape {
		n *= int64(d)
	}
	return n
}

// plan distributes the tensors over files, in their order.
func (w *synthWriter) plan() []shard {
	var plan []shard
	var filled int64
	for _, s := range slots(w.spec) {
		size := slotBytes(s)
		if len(plan) == 0 || filled+size > w.opts.ShardBytes {
			plan, filled = append(plan, shard{}), 0
		}
		last := &plan[len(plan)-1]
		last.slots = append(last.slots, s)
		filled += size
	}
	plan[0].name = weightsFile
	if len(plan) > 1 {
		for i := range plan {
			plan[i].name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(plan))
		}
	}
	return plan
}

// weights writes all shards, and the index if there are several.
func (w *synthWriter) weights(ctx context.Context) error {
	total := w.spec.Parameters() * int64(BF16.Bytes())
	var done int64
	report := func(n int) {
		done += int64(n)
		if w.opts.Progress != nil {
			w.opts.Progress("write", done, total)
		}
	}
	report(0)
	plan := w.plan()
	where := map[string]string{}
	for _, s := range plan {
		if err := w.shard(ctx, s, report); err != nil {
			return err
		}
		for _, slot := range s.slots {
			where[slot.name] = s.name
		}
	}
	if len(plan) == 1 {
		return nil
	}
	index, err := encodeJSON(object{"metadata": object{"total_size": total}, "weight_map": where})
	if err != nil {
		return err
	}
	return w.small(indexFile, index)
}

// shard writes one file: its header, then its chunks in whatever order they are
// ready.
func (w *synthWriter) shard(ctx context.Context, s shard, report func(bytes int)) error {
	header, err := synthHeader(s.slots, w.opts.Seed)
	if err != nil {
		return err
	}
	file, err := w.create(s.name)
	if err != nil {
		return err
	}
	var chunks []synthChunk
	at := int64(len(header))
	for _, slot := range s.slots {
		drawn := drawnFrom(slot, w.spec)
		from := newSource(w.opts.Seed, slot.name, drawn.mean, drawn.deviation)
		size := slotBytes(slot)
		for offset := int64(0); offset < size; offset += synthChunkBytes {
			chunks = append(chunks, synthChunk{from, offset, at + offset, int(min(synthChunkBytes, size-offset))})
		}
		at += size
	}
	_, err = file.WriteAt(header, 0)
	if err == nil {
		workers := min(runtime.GOMAXPROCS(0), len(chunks))
		buffers := make(chan []byte, workers)
		for range workers {
			buffers <- make([]byte, synthChunkBytes)
		}
		err = parallel.Do(ctx, workers, int64(len(chunks)), func(i int64) error {
			c, buffer := chunks[i], <-buffers
			defer func() { buffers <- buffer }()
			c.from.fill(buffer[:c.bytes], c.offset)
			_, err := file.WriteAt(buffer[:c.bytes], c.at)
			return err
		}, func(i int64) { report(chunks[i].bytes) })
	}
	return finish(file, err)
}

// synthHeader is the length and the header of a safetensors file with these
// tensors one after the other, padded so that the data begin at a multiple of 64.
func synthHeader(list []slot, seed uint64) ([]byte, error) {
	header := object{"__metadata__": object{"format": "pt", "generator": "tandem model synth 1", "seed": fmt.Sprint(seed)}}
	var at int64
	for _, s := range list {
		end := at + slotBytes(s)
		header[s.name] = object{"dtype": "BF16", "shape": s.shape, "data_offsets": []int64{at, end}}
		at = end
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("write a safetensors header: %w", err)
	}
	const align = 64
	for (8+len(text))%align != 0 {
		text = append(text, ' ')
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}
