// Package routerlog records the cores of a router: routing, and the life of each request.
//
// The router's drivers import it to record, and package replay to make the cores again. It
// starts no goroutines.
package routerlog

import (
	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Routing is what a routing core is made from.
type Routing struct {
	routing.Config
	IntN func(n int) int // routing.Rand's
}

// New makes the core.
func (r Routing) New() *routing.Router { return routing.New(r.Config, random(r.IntN)) }

type random func(n int) int

func (r random) IntN(n int) int { return r(n) }

// Request is what the life of a request is made from.
type Request struct {
	joining.Params // but for Text
	Push           func(token int32) (text, stop string)
	Flush          func() (text, stop string)
}

// New makes the core.
func (r Request) New() *joining.Join {
	r.Text = text{r}
	return joining.New(r.Params)
}

type text struct{ of Request }

func (t text) Push(token int32) (text, stop string) { return t.of.Push(token) }
func (t text) Flush() (text, stop string)           { return t.of.Flush() }

// NewRouting makes a routing core, and the recorder for its loop if there is a log: else nil.
func NewRouting(log *eventlog.Log, config routing.Config, random routing.Rand) (*routing.Router, coreloop.Recorder) {
	if log == nil {
		return routing.New(config, random), nil
	}
	core, recorded := eventlog.Begin(log, eventlog.KindRouting, Routing{config, random.IntN})
	return recorded.New(), core
}

// NewRequest is as NewRouting for the life of a request. ended has to be called when that is
// over.
func NewRequest(log *eventlog.Log, params joining.Params) (join *joining.Join, recorder coreloop.Recorder, ended func()) {
	if log == nil {
		return joining.New(params), nil, func() {}
	}
	core, recorded := eventlog.Begin(log, eventlog.KindRequest, Request{params, params.Text.Push, params.Text.Flush})
	return recorded.New(), core, core.End
}
