package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/nvml"
)

const (
	// healthWait bounds a wait for events, and so Health.Close.
	healthWait = 500 * time.Millisecond
	// healthCount is the interval between two reads of the error counts.
	healthCount = 10 * time.Second
)

// HealthKind is a kind of HealthEvent.
type HealthKind string

// The kinds of events.
const (
	// HealthXid is an Xid: an error that the driver reports by number.
	HealthXid HealthKind = "xid"
	// HealthCorrected and HealthUncorrected are memory errors that ECC could and could not
	// correct.
	HealthCorrected   HealthKind = "corrected"
	HealthUncorrected HealthKind = "uncorrected"
	// HealthGone: the device fell off the bus. HealthUnwatched: waiting for events fails for
	// another reason. Each of them is the last event.
	HealthGone      HealthKind = "gone"
	HealthUnwatched HealthKind = "unwatched"
)

// HealthEvent is something that happened to a device, whichever process it came from.
type HealthEvent struct {
	Kind HealthKind
	// Xid is the number of a HealthXid.
	Xid uint64
	// Means tells people what the event means and what to do.
	Means string
	// Fatal means that engines treat the device as lost.
	Fatal bool
}

// HealthConfig configures Watch.
type HealthConfig struct {
	// Library is NVML, NVIDIA's management library, which comes with the driver. "" is
	// libnvidia-ml.so.1 in the system's search path.
	Library string
	// Event, if set, is called for each event, on one goroutine, after the engines know.
	Event func(HealthEvent)
}

// Health watches the device of some weights until it is closed. It owns one goroutine.
type Health struct {
	weights *Weights
	watch   *nvml.Watch
	event   func(HealthEvent)
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed by the goroutine
	counts  atomic.Pointer[eccCounts]
}

type eccCounts struct{ corrected, uncorrected uint64 }

// CheckHealth returns why a device cannot be watched; nil if it can. The libraries are those of
// Config.Driver and HealthConfig.
func CheckHealth(library string, device int, nvmlLibrary string) error {
	opened, err := driver.Open(library)
	if err != nil {
		return err
	}
	infos, err := opened.Devices()
	if err != nil {
		return err
	}
	if device < 0 || device >= len(infos) {
		return fmt.Errorf("there is no device %d", device)
	}
	watch, err := nvml.Open(nvmlLibrary, infos[device].PCI)
	if err != nil {
		return err
	}
	return watch.Close()
}

// Watch begins to watch the device. Only one Health may watch at a time. After a fatal event
// the engines' steps and pages fail with engine.ErrDeviceLost and engine.LossNotifier reports it,
// even if no call of the driver has failed yet. The caller closes the Health, before or after
// the weights. The error says why the device cannot be watched.
func (w *Weights) Watch(config HealthConfig) (*Health, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched {
		return nil, errors.New("the device is already being watched")
	}
	watch, err := nvml.Open(config.Library, w.device.Info().PCI)
	if err != nil {
		return nil, err
	}
	w.watched = true
	h := &Health{weights: w, watch: watch, event: config.Event, stop: make(chan struct{}), done: make(chan struct{})}
	h.count()
	go h.run()
	return h, nil
}

// ECC counts the device's memory errors since the driver was loaded, as of a few seconds ago.
// Known is false if the device has no ECC. It is safe for concurrent use.
func (h *Health) ECC() (corrected, uncorrected uint64, known bool) {
	c := h.counts.Load()
	if c == nil {
		return 0, 0, false
	}
	return c.corrected, c.uncorrected, true
}

// Close ends the watch within a second. It is called once.
func (h *Health) Close() error {
	close(h.stop)
	<-h.done
	h.weights.mu.Lock()
	h.weights.watched = false
	h.weights.mu.Unlock()
	return h.watch.Close()
}

func (h *Health) run() {
	defer close(h.done)
	for counted := time.Now(); ; {
		select {
		case <-h.stop:
			return
		default:
		}
		event, err := h.watch.Wait(healthWait)
		if err != nil {
			h.end(err)
			return
		}
		if event.Kind == nvml.Corrected || event.Kind == nvml.Uncorrected || time.Since(counted) > healthCount {
			h.count()
			counted = time.Now()
		}
		switch event.Kind {
		case nvml.Xid:
			text, fatal := xidMeaning(event.Xid)
			h.tell(HealthEvent{Kind: HealthXid, Xid: event.Xid, Means: text, Fatal: fatal})
		case nvml.Corrected:
			h.tell(HealthEvent{Kind: HealthCorrected, Means: "a memory error was corrected"})
		case nvml.Uncorrected:
			h.tell(HealthEvent{Kind: HealthUncorrected, Means: "a memory error that ECC could not correct: reset the GPU", Fatal: true})
		}
	}
}

// end reports the last event.
func (h *Health) end(err error) {
	var failed *nvml.Error
	if errors.As(err, &failed) && failed.Lost() {
		h.tell(HealthEvent{Kind: HealthGone, Means: err.Error() + ": restart the machine", Fatal: true})
		return
	}
	h.tell(HealthEvent{Kind: HealthUnwatched, Means: err.Error()})
}

// count reads the memory errors. If it cannot, the old counts stay.
func (h *Health) count() {
	if corrected, uncorrected, err := h.watch.Errors(); err == nil {
		h.counts.Store(&eccCounts{corrected, uncorrected})
	}
}

// tell reports an event: to the engines if it is fatal, then to the callback.
func (h *Health) tell(event HealthEvent) {
	if event.Fatal {
		what := event.Means
		if event.Kind == HealthXid {
			what = fmt.Sprintf("Xid %d: %s", event.Xid, event.Means)
		}
		h.weights.lose(fmt.Errorf("%w: %s", engine.ErrDeviceLost, what))
	}
	if h.event != nil {
		h.event(event)
	}
}

// lose marks the device as lost, for present and later engines.
func (w *Weights) lose(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = cause
	}
	for l := range w.losses {
		l.notice(cause)
	}
}

// follow notifies an engine's loss when the device is lost, until unfollow.
func (w *Weights) follow(l *loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		l.notice(w.lost)
	}
	if w.losses == nil {
		w.losses = map[*loss]struct{}{}
	}
	w.losses[l] = struct{}{}
}

func (w *Weights) unfollow(l *loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.losses, l)
}
