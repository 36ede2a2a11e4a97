package evidence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/simulate"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// trial is a cluster on virtual time with the traffic for it. Not for concurrent use.
type trial struct {
	simulatedtarget.Server
	load    loadtest.Config
	traffic *pflag.FlagSet
	// begins and ends read the cluster when the measured window begins and ends (of a load with a
	// duration), ended after a run; nil: nothing does.
	begins, ends, ended func(*simulate.Cluster)
	// verdict ends a run when it is certain; nil: runs go to their end.
	verdict *verdict
	// last is the last run.
	last *record.Run
}

// newTrial makes one of a scenario: the text of a file as 'tandem simulate' reads it. Files
// that it names are relative to folder.
func newTrial(folder, text string) (*trial, error) {
	t := &trial{}
	t.traffic = pflag.NewFlagSet("", pflag.ContinueOnError)
	t.load.RegisterFlags(t.traffic)
	mode := t.traffic.String("mode", "auto", "")
	sendSLO := t.traffic.Bool("send-slo", false, "")
	var err error
	if t.Scenario, err = scenario.Parse(folder+"/evidence.yaml", []byte(text), t.traffic); err != nil {
		return nil, err
	}
	var known bool
	if t.Mode, known = api.Parse[inferencev1.Mode](*mode); !known {
		return nil, fmt.Errorf("%q is no mode", *mode)
	}
	t.load.DurationSet, t.load.WarmupSet = t.traffic.Changed("duration"), t.traffic.Changed("warmup")
	if err := t.load.Validate(); err != nil || !*sendSLO {
		return t, err
	}
	slo, err := t.load.Objective()
	t.TTFT, t.TPOT = slo.Bound("ttft"), slo.Bound("tpot")
	return t, err
}

// at sends a rate, requests a second, with the arrivals of a round, and returns what clients
// saw. Rates of one round have the same random numbers.
func (t *trial) at(ctx context.Context, rate float64, round int) (report.Figures, error) {
	load := t.load
	load.Drive = t.Drive
	t.Seed = t.load.Workload.Seed + uint64(round)
	session, err := loadtest.NewSession(ctx, load, t, nil)
	if err != nil {
		return report.Figures{}, err
	}
	session.Round(round)
	f, err := session.Step(ctx, "", rate)
	t.last = session.Last()
	if err == nil {
		err = ctx.Err()
	}
	return f, err
}

// passes reports whether search.Share of the requests of a rate meet the SLO, as at would find.
// The run ends when that is certain.
func (t *trial) passes(ctx context.Context, rate float64, round int) (bool, error) {
	slo, err := t.load.Objective()
	if err != nil {
		return false, err
	}
	t.verdict = &verdict{slo: slo}
	defer func() { t.verdict = nil }()
	f, err := t.at(ctx, rate, round)
	if passed, failed := t.verdict.certain(); passed || failed {
		return passed, err
	}
	return f.SLOAttainment >= search.Share, err // some did not end
}

// Drive is a run on a cluster of its own.
func (t *trial) Drive(ctx context.Context, o drive.Options) (*record.Run, error) {
	server := t.Server
	server.Change = func(c *simulate.Config) {
		if t.Change != nil {
			t.Change(c)
		}
		if t.begins != nil {
			c.Events = append(slices.Clip(c.Events), simulate.Event{At: o.Warmup, Do: simulate.Call(t.begins)})
		}
		if t.ends != nil {
			c.Events = append(slices.Clip(c.Events), simulate.Event{At: o.Warmup + o.Duration, Do: simulate.Call(t.ends)})
		}
	}
	var enough func(*record.Record) bool
	if t.verdict != nil {
		var err error
		if o.Source, err = t.verdict.read(o); err != nil {
			return nil, err
		}
		enough = t.verdict.ended
	}
	cluster, run, err := server.Run(ctx, o, enough)
	if t.ended != nil && cluster != nil {
		t.ended(cluster)
	}
	return run, err
}

// refuseNothing are settings of a router that has a request without an objective wait as long as it takes.
const refuseNothing = "queue-limit: 1000000, max-queue-wait: 2h, max-request-time: 3h, default-class: batch"

// seconds as text with a unit, as flags take it.
func seconds(s float64) string { return time.Duration(s * float64(time.Second)).String() }
