package model

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Options are the choices of Open and LoadSpec. The zero value is good.
type Options struct {
	// Name is what requests call the model; empty means the directory's name.
	Name string
	// ContextTokens, if above 0, is the most that Spec.ContextTokens says. It does
	// not change the digest.
	ContextTokens int
	// Progress, if set, hears how far Open is: stage "map" in files, then
	// "digest" in bytes; first with done 0 and last with done equal to total. It
	// is called by the goroutine that called Open.
	Progress func(stage string, done, total int64)
}

func (o Options) report(stage string, done, total int64) {
	if o.Progress != nil {
		o.Progress(stage, done, total)
	}
}

// Model is an open model: its description and its weights, mapped read-only and
// shared with every other process that maps the same files. All methods but
// Close are safe for concurrent use.
type Model struct {
	spec      Spec
	embedding Tensor
	finalNorm Tensor
	output    Tensor
	layers    []LayerWeights

	closeOnce sync.Once
	closeErr  error
	mappings  []*mapping
}

// Open maps the model in dir, checks all of it and computes its digest, for
// which it reads every byte once. Files must not be changed or truncated while
// the model is open: the kernel answers access to a page that is gone with
// SIGBUS. Errors about the model are of type *Error. The caller closes the model.
func Open(dir string, opts Options) (*Model, error) {
	return OpenContext(context.Background(), dir, opts)
}

// OpenContext is Open that gives up with the context's error when ctx ends.
func OpenContext(ctx context.Context, dir string, opts Options) (*Model, error) {
	spec, err := readSpec(dir, opts)
	if err != nil {
		return nil, err
	}
	files, err := findWeights(dir)
	if err != nil {
		return nil, err
	}
	m := &Model{}
	if err := m.load(ctx, spec, files, opts); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// ReadConfig reads the configuration alone: dir needs no weights. Digest stays empty.
func ReadConfig(dir string) (Spec, error) { return readSpec(dir, Options{}) }

// LoadSpec checks configuration and headers like Open, but reads no weights:
// Digest stays empty.
func LoadSpec(dir string, opts Options) (Spec, error) {
	spec, err := readSpec(dir, opts)
	if err != nil {
		return Spec{}, err
	}
	files, err := findWeights(dir)
	if err != nil {
		return Spec{}, err
	}
	found := map[string]located{}
	for _, path := range files.paths() {
		if err := scanFile(path, files.tensors[path], found); err != nil {
			return Spec{}, err
		}
	}
	if err := checkTensors(files.root, &spec, found); err != nil {
		return Spec{}, err
	}
	return spec.capped(opts.ContextTokens), nil
}

// scanFile adds what the header of one file says to found.
func scanFile(path string, listed map[string]struct{}, found map[string]located) error {
	file, size, err := openRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	entries, _, err := readHeader(path, file, size)
	if err != nil {
		return err
	}
	return collect(path, entries, listed, found)
}

// collect adds the entries of one file to found. listed is what the index says
// that the file holds; nil if there is no index.
func collect(path string, entries []headerEntry, listed map[string]struct{}, found map[string]located) error {
	here := make(map[string]struct{}, len(entries))
	for _, e := range entries {
		if other, twice := found[e.Name]; twice {
			return &Error{File: path, Tensor: e.Name, Problem: "is also in " + other.file, Remedy: "fetch the checkpoint again into an empty directory"}
		}
		if _, ok := listed[e.Name]; listed != nil && !ok {
			return &Error{File: path, Tensor: e.Name, Problem: "is not listed for this file in " + indexFile, Remedy: "fetch the index and all shards of the same checkpoint"}
		}
		here[e.Name] = struct{}{}
		found[e.Name] = located{headerEntry: e, file: path}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if _, ok := here[name]; !ok {
			return &Error{File: path, Tensor: name, Problem: "is missing, though " + indexFile + " says that it is here", Remedy: "fetch the index and all shards of the same checkpoint"}
		}
	}
	return nil
}

func (m *Model) load(ctx context.Context, spec Spec, files weightFiles, opts Options) error {
	found := map[string]located{}
	data := map[string][]byte{} // file to its data part
	total := int64(len(files.tensors))
	opts.report("map", 0, total)
	for _, path := range files.paths() {
		mapped, err := mapFile(path)
		if err != nil {
			return err
		}
		m.mappings = append(m.mappings, mapped)
		entries, start, err := readHeader(path, bytes.NewReader(mapped.data), int64(len(mapped.data)))
		if err != nil {
			return err
		}
		if err := collect(path, entries, files.tensors[path], found); err != nil {
			return err
		}
		data[path] = mapped.data[start:]
		opts.report("map", int64(len(m.mappings)), total)
	}
	if err := checkTensors(files.root, &spec, found); err != nil {
		return err
	}
	take := func(name string) Tensor {
		at := found[name]
		dtype, _ := weightType(at.DType) // checkTensors has seen it
		return Tensor{Name: name, File: at.file, DType: dtype, Shape: at.Shape, Data: data[at.file][at.Start:at.End:at.End]}
	}
	m.layers = make([]LayerWeights, spec.Layers)
	wanted := slots(spec)
	tensors := make([]Tensor, 0, len(wanted))
	for _, w := range wanted {
		t := take(w.name)
		*w.to(m) = t
		tensors = append(tensors, t)
	}
	if spec.TiedEmbeddings {
		m.output = m.embedding
		if _, stored := found[outputName]; stored {
			if other := take(outputName); !bytes.Equal(other.Data, m.embedding.Data) {
				return untied(other.File)
			}
		}
	}
	digest, err := digest(ctx, spec, tensors, opts)
	if err != nil {
		return err
	}
	spec.Digest = digest
	m.spec = spec.capped(opts.ContextTokens)
	return nil
}

// Spec describes the model. The caller must not change what it points to.
func (m *Model) Spec() Spec { return m.spec }

// Embedding is VocabSize by HiddenSize.
func (m *Model) Embedding() Tensor { return m.embedding }

// FinalNorm is the norm before the output matrix: HiddenSize.
func (m *Model) FinalNorm() Tensor { return m.finalNorm }

// Output is the output matrix, VocabSize by HiddenSize: the embedding if they are
// tied.
func (m *Model) Output() Tensor { return m.output }

// Layer is layer i, 0 to Spec().Layers-1; other indices panic as a slice's do.
func (m *Model) Layer(i int) LayerWeights { return m.layers[i] }

// Close unmaps the weights; no Tensor's Data may be touched from then on.
// Closing again does nothing.
func (m *Model) Close() error {
	m.closeOnce.Do(func() {
		errs := make([]error, 0, len(m.mappings))
		for _, mapped := range m.mappings {
			errs = append(errs, mapped.close())
		}
		m.closeErr = errors.Join(errs...)
		m.mappings = nil
	})
	return m.closeErr
}
