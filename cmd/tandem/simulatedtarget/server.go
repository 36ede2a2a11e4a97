// Package simulatedtarget is a load test's server that is a cluster on virtual time: the load test
// describes it and has it do the runs, and no request goes anywhere.
//
// Commands and what they measure with import it. It starts no goroutines of its own.
package simulatedtarget

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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
	// Seed is that of the cluster; Mode, TTFT and TPOT are of all requests.
	Seed       uint64
	Mode       inferencev1.Mode
	TTFT, TPOT time.Duration
	// Change changes the cluster before it starts; nil: nothing does.
	Change func(*simulate.Config)
}

// Drive does a run on a cluster of its own.
func (s Server) Drive(ctx context.Context, o drive.Options) (*record.Run, error) {
	_, run, err := s.Run(ctx, o, nil)
	return run, err
}

// Run is Drive that ends early when enough, if there is one, says so of a request that has ended. The
// cluster is as it is after the run.
func (s Server) Run(ctx context.Context, o drive.Options, enough func(*record.Record) bool) (*simulate.Cluster, *record.Run, error) {
	config := s.Scenario.Config(s.Seed)
	config.Mode, config.TTFT, config.TPOT = s.Mode, s.TTFT, s.TPOT
	if s.Change != nil {
		s.Change(&config)
	}
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
