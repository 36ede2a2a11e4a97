// Package transfer measures the KV transfer on this machine: the real Sender and
// Receiver over real sockets, beside plain copies over the same kind of socket, into
// the same pages, in the same run.
//
// The command line imports it. A Bench owns its pages, which are outside Go's heap,
// its servers and its connections until Close; every goroutine that a measurement
// starts has ended when it returns.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// poolBytes is about how much memory each side has: more than caches hold.
const poolBytes = 512 << 20

// Progress is told, in one line, what was just measured.
type Progress func(line string)

// Bench has what several figures need.
type Bench struct {
	plan     Plan
	layout   kvcache.Layout
	from, to *hostpages.Pages
	prompts  int // whose KV the pages hold
	folder   *tempfolder.Folder
	dir      string // for sockets: folder's
	child    Child
	said     Progress
}

// New makes the pages of a plan. Close gives them back.
func New(plan Plan, child Child, said Progress) (_ *Bench, err error) {
	if err := plan.Validate(); err != nil {
		return nil, err
	}
	b := &Bench{plan: plan, child: child, said: said}
	if b.said == nil {
		b.said = func(string) {}
	}
	if b.layout, err = plan.Layout(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	bytes := int64(plan.blocks() * b.layout.PageBytes())
	b.prompts = int(max(lanes, min(poolBytes, plan.Bytes)/bytes))
	if b.folder, err = tempfolder.Make("bench"); err != nil {
		return nil, fmt.Errorf("make a folder for sockets: %w", err)
	}
	b.dir = b.folder.Path
	if b.from, err = newPages(b.layout, b.prompts*plan.blocks(), 1); err != nil {
		return nil, err
	}
	if b.to, err = newPages(b.layout, b.prompts*plan.blocks(), 2); err != nil {
		return nil, err
	}
	return b, nil
}

// Close gives pages and sockets back. No measurement may be running.
func (b *Bench) Close() error {
	var errs []error
	for _, p := range []*hostpages.Pages{b.from, b.to} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	errs = append(errs, b.folder.Remove())
	return errors.Join(errs...)
}

// Measure measures what the plan asks for.
func (b *Bench) Measure(ctx context.Context) (*Result, error) {
	r := &Result{Plan: b.plan, Checksum: "crc32c", SliceBytes: b.layout.SliceBytes, Layers: b.layout.Layers}
	r.BarrierNs = barrierNs(ctx)
	for _, f := range []struct {
		names   []string
		measure func(context.Context, *Result) error
	}{
		{[]string{FigureRate, FigureUnix, FigureTLS}, b.rates},
		{[]string{FigureAllocations}, b.linked(b.allocations)},
		{[]string{FigureBehind}, b.linked(b.behind)},
		{[]string{FigureExposed}, b.linked(b.exposed)},
		{[]string{FigureKill}, b.kills},
	} {
		if !slices.ContainsFunc(f.names, b.plan.wants) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := f.measure(ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", f.names[0], err)
		}
	}
	return r, nil
}

// linked gives what measures a figure a link of its own.
func (b *Bench) linked(measure func(context.Context, *link, *Result) error) func(context.Context, *Result) error {
	return func(ctx context.Context, r *Result) error {
		l, err := newLink(b.from, b.to, b.plan.Transport, b.dir, b.plan.Connections, nil)
		if err != nil {
			return err
		}
		defer l.close()
		return measure(ctx, l, r)
	}
}

// rates measures FigureRate, FigureUnix and FigureTLS, all in the same rounds.
func (b *Bench) rates(ctx context.Context, r *Result) error {
	transports := []string{TCP} // plain TCP is what both are held against
	if b.plan.Transport == Unix || b.plan.wants(FigureUnix) {
		transports = append(transports, Unix)
	}
	if b.plan.Transport == Shm {
		transports = append(transports, Shm)
	}
	var contenders []contender
	var closers []func()
	defer func() {
		for _, closeOne := range closers {
			closeOne()
		}
	}()
	for _, transport := range transports {
		plain, closeAll, err := b.plain(ctx, transport)
		if err != nil {
			return err
		}
		closers = append(closers, closeAll)
		l, err := newLink(b.from, b.to, transport, b.dir, b.plan.Connections, nil)
		if err != nil {
			return err
		}
		closers = append(closers, l.close)
		if err := b.movePrompts(ctx, l, lanes); err != nil { // not counted: the connection is new
			return err
		}
		contenders = append(contenders, append(plain, b.ours(l, transport))...)
	}
	if b.plan.wants(FigureTLS) {
		security, err := newSecurity(b.dir)
		if err != nil {
			return err
		}
		l, err := newLink(b.from, b.to, TCP, b.dir, b.plan.Connections, security)
		if err != nil {
			return err
		}
		closers = append(closers, l.close)
		if err := b.movePrompts(ctx, l, lanes); err != nil {
			return err
		}
		seal, open, err := b.aes()
		if err != nil {
			return err
		}
		contenders = append(contenders, b.ours(l, transportTLS), seal, open)
	}
	rates, err := takeTurns(ctx, contenders, b.plan.Rounds, b.said)
	if err != nil {
		return err
	}
	r.setRates(rates)
	return nil
}

// newPages are blocks of which every byte is chance, drawn from seed: so every page was
// touched. Callers see to it that slices are not read while they are written.
func newPages(layout kvcache.Layout, blocks int, seed byte) (*hostpages.Pages, error) {
	p, err := hostpages.MapShared(layout, blocks)
	if err != nil { // not on every system; over shm nothing can be measured then
		p, err = hostpages.Map(layout, blocks)
	}
	if err != nil {
		return nil, err
	}
	p.Collapse()
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p.Bytes()) // it never fails
	return p, nil
}

// first is the memory of the first blocks.
func first(p *hostpages.Pages, blocks int) []byte {
	return p.Bytes()[:blocks*p.Layout().PageBytes()]
}
