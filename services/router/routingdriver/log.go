package routingdriver

import (
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// foreignBurst is how many workers of other versions are named in one go; of more
// it is said how many there were.
const foreignBurst = 31

// logEvery is how often the same is said, besides a burst.
const logEvery = 10 * time.Second

// pinned says which version of a model is served, if no policy does, in the log and to
// other routers.
func (d *Dispatcher) pinned(a routing.Pinned) {
	d.log.Info("model is served in one version",
		slog.String("model", a.Model), slog.String("model_digest", a.Version.Digest), slog.String("arithmetic_class", a.Version.Class))
	if d.announce != nil {
		d.announce(a.Model, a.Version.Digest, a.Version.Class)
	}
}

// disagree says that other routers serve other versions, or that they do not any more.
func (d *Dispatcher) disagree(a routing.Disagree) {
	log := d.log.With(slog.String("model", a.Model), slog.String("served", routing.VersionsText(a.Served)))
	if len(a.Others) == 0 {
		log.Info("routers serve the same version of a model again")
		return
	}
	log.Error("routers serve different versions of a model: say which with 'tandem policy set --version'", slog.Any("others", a.Others))
}

// excluded says that a worker is left out for its version, or is not any more.
func (d *Dispatcher) excluded(now time.Time, a routing.Foreign) {
	attributes := []any{
		slog.String("worker", a.Worker.ID), slog.String("role", api.Name(a.Role)),
		slog.String("model", a.Model), slog.String("model_digest", a.Version.Digest), slog.String("arithmetic_class", a.Version.Class),
	}
	if !a.Excluded {
		d.foreign.Warn(d.log, now, "worker gets requests again: its version of the model is served now", attributes...)
		return
	}
	d.foreign.Warn(d.log, now, "worker gets no requests: its weights or arithmetic differ from those served for this model; give it the same, or list its version with 'tandem policy set --version'",
		append(attributes, slog.String("served", routing.VersionsText(a.Served)))...)
}

// distrusted says that a worker's load reports are not believed.
func (d *Dispatcher) distrusted(now time.Time, a routing.Distrusted) {
	d.distrusts.WithLabelValues(a.Why).Inc()
	message := "load reports of worker are ignored for a while: two senders use its name; check who may publish to NATS"
	switch a.Why {
	case routing.DistrustRouter:
		message = "reports of another router are ignored for a while: two senders use its name; check who may publish to NATS"
	case routing.DistrustRefuted:
		message = "load reports of worker are ignored for a while: they said that it is full, but it took a request at once"
	}
	d.reports.Warn(d.log, now, message, slog.String("worker", a.Worker.ID), slog.Duration("wait", a.Wait))
}
