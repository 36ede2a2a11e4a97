package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
	"github.com/tandem-serving/tandem/pkg/model"
)

// errClosed is what is left to say after Close.
var errClosed = errors.New("closed")

// Weights are a model's weights in a device's memory: one per process and model,
// however many engines. It is safe for concurrent use.
type Weights struct {
	spec    model.Spec
	kind    WeightType
	shape   shape
	device  *driver.Device
	kernels *kernels.Set
	version string // of CUDA, that the driver supports
	memory  driver.Address
	at      weightAddresses
	book    *pageloans.Book[*pages] // what its engines' pages have lent each other
	pace    *pace                   // of copies to and from its engines' pages

	mu      sync.Mutex
	engines int
	closed  bool
	attends map[KVType]*kernels.Attention // loaded by the first engine that wants them
	losses  map[*loss]struct{}            // of the engines
	lost    error                         // what the device was lost by, as who watches it says
	watched bool
}

// Load copies the weights of m to a device. m is not needed any more once it returns.
// Without a driver, a device or enough memory the error says which, and what to do.
func Load(ctx context.Context, m *model.Model, config Config) (*Weights, error) {
	spec := m.Spec()
	config = config.withDefaults()
	if err := config.Weights.Validate(); err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	if err := checkModel(spec); err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	paced, err := newPace(config.CopyRate)
	if err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	library, err := driver.Open(config.Driver)
	if err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	device, err := library.NewDevice(config.Device)
	if err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	if err := checkDeviceFor(device.Info(), spec); err != nil {
		return nil, fmt.Errorf("load weights: %w", errors.Join(err, device.Close()))
	}
	major, minor := library.Version()
	w := &Weights{
		spec: spec, kind: config.Weights, shape: shapeOf(spec), device: device, version: fmt.Sprintf("%d.%d", major, minor),
		book: pageloans.NewBook[*pages](), pace: paced,
	}
	if err := w.load(ctx, m, config.Progress); err != nil {
		return nil, fmt.Errorf("load weights of %s: %w", spec.Name, errors.Join(err, w.free()))
	}
	return w, nil
}

// load fills a new w.
func (w *Weights) load(ctx context.Context, m *model.Model, progress func(done, total int64)) (err error) {
	if w.kernels, err = kernels.Load(w.device, w.kind.used()...); err != nil {
		return err
	}
	bytes := WeightBytes(w.spec, w.kind)
	if err := w.checkFree(bytes+stagingOf(w.kind), "weights"); err != nil {
		return err
	}
	if w.memory, err = w.device.Allocate(bytes); err != nil {
		return err
	}
	w.at = layWeights(&arena{base: w.memory}, w.spec, w.kind)
	total, taken := bytesOf(m, w.at.output != w.at.embedding), int64(0)
	u, err := newUploader(ctx, w, func(bytes int) {
		taken += int64(bytes)
		if progress != nil {
			progress(taken, total)
		}
	})
	if err != nil {
		return err
	}
	clear := w.device.NewProgram()
	defer clear.Free()
	clear.Fill(w.memory, 0, bytes)
	err = u.stream.Run(clear)
	if err == nil {
		err = w.upload(u, m)
	}
	if err == nil {
		err = u.finish()
	}
	runtime.KeepAlive(m) // its tensors are mapped until here
	return errors.Join(err, u.close())
}

// checkFree refuses what the device has no memory for.
func (w *Weights) checkFree(bytes int64, what string) error {
	free, total, err := w.device.Memory()
	if err != nil {
		return err
	}
	if bytes > free {
		return fmt.Errorf("%s take %d MiB, but %s has %d MiB free of %d: use a smaller model, or free memory on the device",
			what, bytes>>20, w.device.Info().Name, free>>20, total>>20)
	}
	return nil
}

// upload fills the memory.
func (w *Weights) upload(u *uploader, m *model.Model) error {
	at := w.at
	if err := u.matrix(at.embedding, m.Embedding()); err != nil {
		return err
	}
	if at.output != at.embedding {
		if err := u.matrix(at.output, m.Output()); err != nil {
			return err
		}
	}
	if err := errors.Join(u.vector(at.finalNorm, m.FinalNorm()), u.angles(at.cos, at.sin, w.spec)); err != nil {
		return err
	}
	for i, to := range at.layers {
		if err := w.uploadLayer(u, to, m.Layer(i)); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

func (w *Weights) uploadLayer(u *uploader, to layerAddresses, l model.LayerWeights) error {
	s := w.shape
	kv := s.kvHeads * s.headSize
	if err := u.spread(to.o, l.O, s.headSize, s.stride); err != nil {
		return err
	}
	for _, part := range []struct {
		to matrix
		t  model.Tensor
	}{
		{to.qkv, l.Q}, {to.qkv.from(s.q), l.K}, {to.qkv.from(s.q + kv), l.V},
		{to.gate, l.Gate}, {to.up, l.Up}, {to.down, l.Down},
	} {
		if err := u.matrix(part.to, part.t); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		to driver.Address
		t  model.Tensor
	}{
		{to.attentionNorm, l.AttnNorm}, {to.ffnNorm, l.FFNNorm},
		{to.bias, l.QBias}, {to.bias + driver.Address(4*s.q), l.KBias}, {to.bias + driver.Address(4*(s.q+kv)), l.VBias},
		{to.qNorm, l.QNorm}, {to.kNorm, l.KNorm},
	} {
		if len(part.t.Data) == 0 { // which the model has not
			continue
		}
		if err := u.vector(part.to, part.t); err != nil {
			return err
		}
	}
	return nil
}

// bytesOf is what a checkpoint has to be read, with an output matrix of its own or without.
func bytesOf(m *model.Model, output bool) int64 {
	n := model.DataBytes(m.Embedding(), m.FinalNorm())
	if output {
		n += model.DataBytes(m.Output())
	}
	for i := range m.Spec().Layers {
		l := m.Layer(i)
		n += l.Bytes()
	}
	return n
}

// Spec describes the model.
func (w *Weights) Spec() model.Spec { return w.spec }

// Type is what the layers' matrices are kept as.
func (w *Weights) Type() WeightType { return w.kind }

// Bytes is the device memory that the weights take.
func (w *Weights) Bytes() int64 { return WeightBytes(w.spec, w.kind) }

// DeviceName is the device's, for people.
func (w *Weights) DeviceName() string { return w.device.Info().Name }

// DriverVersion is the version of CUDA that the driver supports, such as "12.4".
func (w *Weights) DriverVersion() string { return w.version }

// FreeBytes is the device memory that nobody has taken.
func (w *Weights) FreeBytes() (int64, error) {
	free, _, err := w.device.Memory()
	return free, err
}

// attention is the kernels of attention for keys and values of a type.
func (w *Weights) attention(kv KVType) (*kernels.Attention, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attends[kv]; a != nil {
		return a, nil
	}
	a, err := kernels.LoadAttention(w.device, kv.kernels(), w.shape.stride)
	if err != nil {
		return nil, err
	}
	if w.attends == nil {
		w.attends = map[KVType]*kernels.Attention{}
	}
	w.attends[kv] = a
	return a, nil
}

// acquire counts an engine in.
func (w *Weights) acquire() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("weights of %s: %w", w.spec.Name, errClosed)
	}
	w.engines++
	return nil
}

func (w *Weights) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engines--
}

// Close frees the weights and gives the device back. It refuses while engines are open;
// closing twice does nothing.
func (w *Weights) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.engines > 0 {
		return fmt.Errorf("close weights of %s: %d engines still use them: close those first", w.spec.Name, w.engines)
	}
	if w.closed {
		return nil
	}
	w.closed = true
	return w.free()
}

func (w *Weights) free() error {
	var errs []error
	if w.memory != 0 {
		errs = append(errs, w.device.Free(w.memory))
	}
	for _, a := range w.attends {
		errs = append(errs, a.Unload())
	}
	if w.kernels != nil {
		errs = append(errs, w.kernels.Unload())
	}
	return closing(append(errs, w.device.Close()))
}
