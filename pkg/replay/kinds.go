package replay

import (
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// failures are the errors that cores tell apart by their type.
var failures = []any{&routing.Refusal{}, &worker.NotFiniteError{}, &engine.NotFiniteError{}}

// NewCodecs returns the codecs of the cores of all kinds.
func NewCodecs() (eventlog.Codecs, error) {
	codecs := make(eventlog.Codecs)
	for kind, values := range map[string][]any{
		eventlog.KindRouting: {
			routerlog.Routing{},

			routing.ViewChanged{}, routing.Connected{}, routing.ConnectFailed{}, routing.Leaving{},
			routing.Disconnected{}, routing.LoadReported{}, routing.RouterReported{}, routing.BlocksChanged{}, routing.BlocksListed{}, routing.Arrived{}, routing.Hedge{},
			routing.Queued{}, routing.Taken{}, routing.Unread{}, routing.Read{}, routing.PromptDone{}, routing.Sent{}, routing.Fetched{}, routing.TokensReceived{},
			routing.Contradicted{}, routing.Ended{}, routing.Cancelled{}, routing.PolicyChanged{}, routing.Tick{},
			routing.Connect{}, routing.Forget{}, routing.DuplicateID{}, routing.TooManyWorkers{}, routing.ListBlocks{},
			routing.Dispatch{}, routing.Pinned{}, routing.Disagree{}, routing.Foreign{}, routing.Distrusted{}, routing.PathLost{},
			routing.Suspected{}, routing.Tell{}, routing.Refuse{},
		},
		eventlog.KindRequest: {
			routerlog.Request{},
			eventlog.Without[joining.Params]("Text"),

			joining.Start{}, joining.Dispatched{}, joining.Refused{}, joining.DecodeMessage{}, joining.PrefillMessage{},
			joining.Closed{}, joining.Progressed{}, joining.Abort{}, joining.Tick{},
			joining.Ask{}, joining.AskHedge{}, joining.Withdraw{}, joining.OpenDecode{}, joining.OpenPrefill{}, joining.Close{}, joining.Tell{},
			joining.CheckProgress{}, joining.Release{}, joining.Accept{}, joining.Deliver{}, &joining.Deliver{}, joining.DeliverPrompt{}, joining.Finish{},

			// What it tells routing.
			routing.Queued{}, routing.Taken{}, routing.PromptDone{}, routing.Sent{}, routing.Fetched{}, routing.TokensReceived{}, routing.Contradicted{},
		},
		eventlog.KindWorker: {
			worker.Config{},
			eventlog.Without[scheduler.Config]("Pool"),
			eventlog.Without[scheduler.Request]("Hashes", "Constraint"), // a replay's scheduler computes the first; the other works in the engine alone
			eventlog.Without[engine.Sample]("Constraint"),
			eventlog.Without[engine.Batch]("LayerDone", "LayersDone", "TokenBuffer", "Mirrors"), // the engine writes into the last two

			worker.Generate{}, worker.Reserved{}, worker.NotReserved{}, worker.Arrived{}, worker.Broke{}, worker.Drained{},
			worker.Prefill{}, worker.Opened{}, worker.NotOpened{}, worker.Fetched{}, worker.Sent{}, worker.Cancel{},
			worker.CancelAll{}, worker.Inspected{}, worker.StepTook{},
			worker.ReserveKV{}, worker.CancelKV{}, worker.SendDecode{}, worker.OpenTransfer{}, worker.Fetch{}, worker.Offer{},
			worker.Commit{}, worker.Abort{}, worker.SendPrefill{}, worker.End{}, worker.Stalled{}, worker.Inspect{},
			worker.Fault{}, worker.Gone{},

			scheduler.Submit{}, scheduler.KVArrived{}, scheduler.TransferDone{}, scheduler.Cancel{}, scheduler.StepDone{},
			scheduler.Drain{}, scheduler.Undrain{}, scheduler.SaveLimit{}, scheduler.SaveDone{}, scheduler.Scrubbed{},
			scheduler.Reserved{}, scheduler.Started{}, scheduler.Preempted{}, scheduler.Resumed{}, &scheduler.RunStep{},
			&scheduler.Sampled{}, scheduler.PromptScored{}, scheduler.Finished{}, scheduler.Refused{}, scheduler.Released{}, &scheduler.BlocksChanged{},
			scheduler.Save{}, scheduler.StopSave{}, scheduler.Scrub{},
		},
	} {
		codec, err := eventlog.NewCodec(append(values, failures...)...)
		if err != nil {
			return nil, err
		}
		codecs[kind] = codec
	}
	return codecs, nil
}

// machine is a core as a log drives it.
type machine interface {
	handle(now time.Time, event any) (actions any, err error)
	Next() (at time.Time, ok bool)
}

// driven makes a machine of a core.
type driven[E, A any] struct{ coreloop.Core[E, A] }

func (d driven[E, A]) handle(now time.Time, event any) (actions any, err error) {
	e, is := event.(E)
	if !is {
		return nil, fmt.Errorf("%T is no event of this core", event)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the core fails: %v", r)
		}
	}()
	return d.Handle(now, e), nil
}

// newMachine makes the core that a log says to begin.
func newMachine(config any) (machine, error) {
	switch c := config.(type) {
	case routerlog.Routing:
		return driven[routing.Event, routing.Action]{c.New()}, nil
	case routerlog.Request:
		return driven[joining.Event, joining.Action]{c.New()}, nil
	case worker.Config:
		core, err := worker.New(c)
		if err != nil {
			return nil, fmt.Errorf("the worker of the log cannot be made: %w", err)
		}
		return driven[worker.Event, worker.Action]{core}, nil
	}
	return nil, fmt.Errorf("a core that begins with a %T is not known", config)
}
