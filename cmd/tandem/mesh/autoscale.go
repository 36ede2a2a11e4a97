package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/scaling"
)

const (
	// scaleEvery is how often the autoscaler checks the desired sizes, which change more rarely.
	scaleEvery = time.Second
	// scaleRetry is how long it waits after a worker failed to start.
	scaleRetry = 30 * time.Second
)

// newAutoscaler starts and stops workers of this process to match the router's desired sizes. The
// workers of the lower bounds are ordinary parts of the process.
func (p *process) newAutoscaler(context.Context) ([]lifecycle.Service, error) {
	if p.autoscale == nil {
		return nil, nil
	}
	a := &autoscaler{process: p, bounds: *p.autoscale, ended: make(chan *extra)}
	return []lifecycle.Service{{Name: "autoscaler", Run: a.run}}, nil
}

// autoscaler owns the workers beyond the lower bounds. It has one goroutine, which runs run, and
// one for each of its workers.
type autoscaler struct {
	process *process
	bounds  scaling.Bounds
	ended   chan *extra // workers whose goroutine is over
	extras  []*extra    // workers that run or stop, in the order of their starts
	retryAt time.Time   // no worker starts before this
	taken   []string    // ids that workers have by the router's view, those of other processes too
}

// extra is a worker that the autoscaler started.
type extra struct {
	part     *part
	engine   engine.Engine
	metrics  *removable
	stop     context.CancelFunc
	stopping bool
	err      error // set before it is sent to ended
}

// run follows the desired sizes until its context ends, and waits for its workers. A worker that
// fails ends the process, as any other does.
func (a *autoscaler) run(ctx context.Context) error {
	ticker := time.NewTicker(scaleEvery)
	defer ticker.Stop()
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			return a.stopAll()
		case e := <-a.ended:
			err = a.end(e)
		case now := <-ticker.C:
			a.follow(ctx, now)
		}
	}
	return errors.Join(err, a.stopAll())
}

// follow starts and stops workers so that, with those of other processes, there are as many as the
// router desires.
func (a *autoscaler) follow(ctx context.Context, now time.Time) {
	if !a.process.ready.Load() || a.process.sizes == nil {
		return
	}
	sizes, known := a.process.sizes(a.process.model.spec.Name)
	if !known {
		return
	}
	others := a.others(ctx)
	a.scale(now, controlv1.Role_ROLE_PREFILL, a.bounds.Prefill, sizes.Prefill, others[controlv1.Role_ROLE_PREFILL])
	a.scale(now, controlv1.Role_ROLE_DECODE, a.bounds.Decode, sizes.Decode, others[controlv1.Role_ROLE_DECODE])
}

// others is how many workers of other processes get requests for the model, by role. It updates taken.
func (a *autoscaler) others(ctx context.Context) map[controlv1.Role]int {
	serve := map[controlv1.Role]int{}
	errOnce := errors.New("one view is enough")
	_ = a.process.watchWorkers(ctx, func(workers []*controlv1.WorkerView, _ string) error {
		a.taken = a.taken[:0]
		for _, v := range workers {
			a.taken = append(a.taken, v.GetRecord().GetId())
			if r := v.GetRecord(); v.GetConnected() && v.GetExcluded() == "" && r.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING && r.GetModel() == a.process.model.spec.Name && !a.has(r.GetId()) {
				serve[r.GetRole()]++
			}
		}
		return errOnce
	})
	return serve
}

// has reports whether a worker is one of this process.
func (a *autoscaler) has(id string) bool {
	return slices.ContainsFunc(a.process.parts, func(p *part) bool { return p.id == id }) ||
		slices.ContainsFunc(a.extras, func(e *extra) bool { return e.part.id == id })
}

// scale changes a pool to a size, of which other processes have some. Workers that stop still hold their
// memory, so they count before others may start.
func (a *autoscaler) scale(now time.Time, role controlv1.Role, bounds scaling.Range, size scaling.Size, others int) {
	var serve []*extra
	all := bounds.Min
	for _, e := range a.extras {
		if e.part.role != role {
			continue
		}
		all++
		if !e.stopping {
			serve = append(serve, e)
		}
	}
	want := max(min(size.Desired, bounds.Max)-others-bounds.Min, 0)
	for n := len(serve); n < want && all < bounds.Max && !now.Before(a.retryAt); n, all = n+1, all+1 {
		if err := a.start(role, size.Reason); err != nil {
			a.retryAt = now.Add(scaleRetry)
			a.process.logger.Error("cannot start a worker: allow fewer with --autoscale, or see what it lacks",
				slog.String("pool", api.Name(role)), slog.Any("error", err))
		}
	}
	for len(serve) > want {
		last := serve[len(serve)-1]
		serve = serve[:len(serve)-1]
		a.process.logger.Info("stopping a worker", slog.String("worker", last.part.id), slog.String("reason", size.Reason))
		last.stopping = true
		last.stop()
	}
}

// start starts a worker of a role.
func (a *autoscaler) start(role controlv1.Role, why string) (err error) {
	p := a.process
	e := &extra{part: &part{role: role, id: a.freeID(role), listen: "127.0.0.1:0", ended: make(chan struct{})}, metrics: &removable{Registerer: p.registry}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", e.part.id, err), a.release(e))
		}
	}()
	if err := p.secure(e.part); err != nil {
		return err
	}
	if err := p.listenPart(e.part); err != nil {
		return err
	}
	if e.engine, err = p.newEngine(e.part); err != nil {
		return err
	}
	services, err := p.workerServices(e.part, e.engine, e.metrics)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	a.extras = append(a.extras, e)
	p.logger.Info("starting a worker", slog.String("worker", e.part.id), slog.String("reason", why))
	go func() {
		e.err = lifecycle.Run(ctx, p.logger, p.options.StopTimeout, services...)
		a.ended <- e
	}()
	return nil
}

// freeID is an id that no worker has.
func (a *autoscaler) freeID(role controlv1.Role) string {
	for n := 1; ; n++ {
		if id := fmt.Sprintf("%s-%d", api.Name(role), n); !a.has(id) && !slices.Contains(a.taken, id) {
			return id
		}
	}
}

// autoscaledIDs are the ids of workers that may start beyond the lower bounds.
func (p *process) autoscaledIDs() (ids []string) {
	if p.autoscale == nil {
		return nil
	}
	for role, r := range map[controlv1.Role]scaling.Range{controlv1.Role_ROLE_PREFILL: p.autoscale.Prefill, controlv1.Role_ROLE_DECODE: p.autoscale.Decode} {
		for n := r.Min; n < r.Max; n++ {
			ids = append(ids, fmt.Sprintf("%s-%d", api.Name(role), n+1))
		}
	}
	return ids
}

// end follows when a worker has ended. It returns an error if the worker should not have.
func (a *autoscaler) end(e *extra) error {
	e.stop()
	a.extras = slices.DeleteFunc(a.extras, func(o *extra) bool { return o == e })
	err := errors.Join(e.err, a.release(e))
	switch {
	case err == nil && e.stopping:
		return nil
	case err == nil:
		err = errors.New("it ended by itself")
	}
	err = fmt.Errorf("%s: %w", e.part.id, err)
	if e.stopping {
		a.process.logger.Warn("a worker did not stop well", slog.Any("error", err))
		return nil
	}
	return err
}

// release frees the resources of a worker.
func (a *autoscaler) release(e *extra) error {
	close(e.part.ended)
	e.metrics.remove()
	a.process.closePart(e.part)
	err := a.process.closeEventLog(e.part.log)
	if e.engine == nil {
		return err
	}
	return errors.Join(err, a.process.engines.Free(e.engine))
}

// stopAll stops all workers and waits for them.
func (a *autoscaler) stopAll() (err error) {
	for _, e := range a.extras {
		e.stopping = true
		e.stop()
	}
	for len(a.extras) > 0 {
		err = errors.Join(err, a.end(<-a.ended))
	}
	return err
}

// removable registers collectors so that they can be removed again.
type removable struct {
	prometheus.Registerer
	added []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (r *removable) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	if err == nil {
		r.added = append(r.added, c)
	}
	return err
}

// MustRegister implements prometheus.Registerer.
func (r *removable) MustRegister(all ...prometheus.Collector) {
	prometheus.WrapRegistererWith(nil, r).MustRegister(all...) // calls Register for each
}

// remove removes all of them.
func (r *removable) remove() {
	for _, c := range r.added {
		r.Unregister(c)
	}
	r.added = nil
}
