// Package simulatedtarget is a load test's server that is a cluster on virtual time: the load test
// describes it and has it do the runs, and no request goes anywhere.
//
// Commands and what they measure with import it. It starts no goroutines of its own.
package simulatedtarget

import (
	"context"
	"errors"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/simulate"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// ManyRequests is a tenant's limit that no load reaches: whose requests they are is not what is
// measured.
const ManyRequests = 1_000_000

// Server is a cluster of a scenario.
type Server struct {
	Scenario *scenario.Scenario
	// Address is what reports say of where it is.
	Address string
}

// Run does a run on a cluster of config, which is the scenario's, changed or not. The run ends early
// with ctx, and when enough, if there is one, says so of a request that has ended. The cluster is as
// it is after the run.
func (s Server) Run(ctx context.Context, config simulate.Config, o drive.Options, enough func(*record.Record) bool) (*simulate.Cluster, *record.Run, error) {
	if err := o.Complete(); err != nil {
		return nil, nil, err
	}
	cluster, err := simulate.New(config)
	if err != nil {
		return nil, nil, err
	}
	run, err := cluster.Run(simulate.Load{
		Source: o.Source, Tokenize: s.Scenario.Tokenizer(), Offered: o.Offered, Concurrency: o.Concurrency, Warmup: o.Warmup, Duration: o.Duration, Lasts: o.Lasts,
		RequestTimeout: o.RequestTimeout, DrainTimeout: o.DrainTimeout, InFlightLimit: o.InFlightLimit,
		Stop: func() bool { return ctx.Err() != nil }, Enough: enough, Progress: o.Progress,
	})
	return cluster, run, err
}

// Describe implements client.Client.
func (s Server) Describe(context.Context) (client.Description, error) {
	spec := s.Scenario.Spec()
	return client.Description{Kind: "simulated", Address: s.Address, Model: spec.Name, VocabularySize: spec.VocabSize, ContextTokens: spec.ContextTokens}, nil
}

// Do implements client.Client. Nobody calls it.
func (Server) Do(_ context.Context, _ *workload.Request, _ client.Clock, r *record.Record) workload.Answer {
	r.Outcome, r.Error = record.Failed, errors.ErrUnsupported.Error()
	return workload.Answer{}
}

// Close implements client.Client.
func (Server) Close() error { return nil }
