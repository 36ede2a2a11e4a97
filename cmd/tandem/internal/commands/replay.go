package commands

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/replay"
)

func newReplayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "Repeat the decisions in an event log, or ask what another policy would have decided",
		Long: `Gives the events of a log, which 'up' and 'serve' write with --record, to the same code
again, each at its time, and compares every action with the one in the log. At the first
difference it stops, shows the event, what was done then and what is done now, and the exit
status is 1.

With --policy or a flag of the router, such as --router-max-queue-wait, it asks instead what
a router would have decided with that setting, everything else as in the log, and counts what
differs; --json lists the first 1,000 requests that do. The log is read twice, so it cannot
come from a pipe. Workers report what they reported then; use a simulation to see how their
load would change.

A log ends early if its process was killed, or if it reached --record-limit. Then it is
repeated as far as it goes, and the output says why it ends.`,
		Example: `  tandem up --record events
  tandem replay events/*
  tandem replay events/router-1-*.events --policy round-robin
  tandem replay events/router-1-*.events --router-disaggregate-min-tokens 256`,
		Args: atLeastOne("the log"),
	}
	var policy policyFlags
	onlyOnCommandLine(cmd, policy.register(cmd.Flags())...) // the environment's are of a router
	asJSON := addJSON(cmd, "print one JSON object for each file")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := policy.check(); err != nil {
			return usageError(cmd, err.Error())
		}
		if policy.changed() {
			return eachFile(cmd.Context(), paths, func(path string, in io.ReadSeeker) error {
				comparison, err := replay.WhatIf(cmd.Context(), in, policy.change)
				if err != nil {
					return err
				}
				return show(cmd, *asJSON, whatIfJSON{path, comparison}, writeWhatIf)
			})
		}
		differ := 0
		err := eachFile(cmd.Context(), paths, func(path string, in io.ReadSeeker) error {
			result, err := replay.Run(cmd.Context(), bufio.NewReaderSize(in, 1<<20))
			if cmd.Context().Err() != nil {
				return err
			}
			if result.Difference != nil {
				differ++
			}
			if result.Events > 0 || err == nil {
				if failed := show(cmd, *asJSON, replayJSONOf(path, result), writeReplay); err == nil {
					err = failed
				}
			}
			return err
		})
		if differ > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d logs differ from what is done now", differ, len(paths)))
		}
		return err
	}
	return cmd
}

// eachFile reads files one after the other until ctx ends. A file that cannot be read does not
// keep it from the others.
func eachFile(ctx context.Context, paths []string, read func(path string, in io.ReadSeeker) error) error {
	var errs []error
	for _, path := range paths {
		file, err := os.Open(path)
		if opened, is := errors.AsType[*os.PathError](err); is {
			err = fmt.Errorf("%w: name a log that --record of 'tandem up' or 'tandem serve' wrote", opened.Err)
		} else if err == nil {
			err = readOne(path, file, read)
			_ = file.Close()
		}
		if ctx.Err() != nil {
			interrupted := &exitError{status: exitInterrupted, message: "interrupted before all logs were read", cause: ctx.Err()}
			return errors.Join(append(errs, interrupted)...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func readOne(path string, file *os.File, read func(path string, in io.ReadSeeker) error) error {
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return errors.New("it is a folder: name the logs in it")
	}
	return read(path, file)
}

// replayJSON is a replay.Result as JSON.
type replayJSON struct {
	File       string          `json:"file"`
	Build      string          `json:"build"`
	Cores      map[string]int  `json:"cores"`
	Events     uint64          `json:"events"`
	Actions    uint64          `json:"actions"`
	Seconds    float64         `json:"seconds"`
	Incomplete string          `json:"incomplete,omitempty"`
	Difference *differenceJSON `json:"difference,omitempty"`
}

type differenceJSON struct {
	Event    uint64    `json:"event_number"`
	Core     string    `json:"core"`
	Time     time.Time `json:"time"`
	Taken    []string  `json:"event"`
	Expected []string  `json:"expected"`
	Got      []string  `json:"got"`
}

func replayJSONOf(path string, r replay.Result) replayJSON {
	out := replayJSON{
		File: path, Build: r.Build, Cores: r.Cores, Events: r.Events, Actions: r.Actions,
		Seconds: r.Until.Sub(r.Began).Seconds(), Incomplete: r.Incomplete,
	}
	if d := r.Difference; d != nil {
		out.Difference = &differenceJSON{d.Number, d.Core, d.Now, d.Event, d.Expected, d.Got}
	}
	return out
}

func writeReplay(w io.Writer, r replayJSON) error {
	same := "no action differs"
	if r.Difference != nil {
		same = "the last event differs"
	}
	fmt.Fprintf(w, "%s: %d events of %.1f s, %d actions: %s\n", r.File, r.Events, r.Seconds, r.Actions, same)
	if r.Incomplete != "" {
		fmt.Fprintf(w, "  incomplete: %s\n", r.Incomplete)
	}
	d := r.Difference
	if d == nil {
		return nil
	}
	fmt.Fprintf(w, "\nevent %d, %s, of %s, in a log of %s:\n", d.Event, d.Time.UTC().Format(time.RFC3339Nano), d.Core, r.Build)
	for _, line := range d.Taken {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintln(w, "\nexpected (-) and got (+):")
	for _, line := range eventlog.Diff(d.Expected, d.Got) {
		fmt.Fprintf(w, "%s\n", line)
	}
	return nil
}

// whatIfJSON is a replay.Comparison of a file.
type whatIfJSON struct {
	File string `json:"file"`
	replay.Comparison
}

func writeWhatIf(w io.Writer, o whatIfJSON) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n", o.File)
	row := func(name string, n int) { fmt.Fprintf(t, "  %s\t%d\n", name, n) }
	row("requests", o.Requests)
	row("decided the same", o.Same)
	row("sent to other workers", o.OtherWorkers)
	row("sent in another mode", o.OtherMode)
	row("refused instead of sent", o.Refused)
	var reasons []string
	for reason, n := range o.Reasons {
		reasons = append(reasons, fmt.Sprintf("    %s\t%d\n", reason, n))
	}
	slices.Sort(reasons)
	fmt.Fprint(t, strings.Join(reasons, ""))
	row("sent instead of refused", o.Sent)
	row("not decided", o.Undecided)
	row("hedged attempts left out", o.Hedges)
	row("waited longer", o.Longer)
	row("waited less long", o.Shorter)
	fmt.Fprintf(t, "  \tmean\tp50\tp99\tmax\n")
	for _, waits := range []struct {
		name string
		of   replay.Waits
	}{{"waited, ms", o.Was}, {"would wait, ms", o.Would}} {
		fmt.Fprintf(t, "  %s\t%.1f\t%.1f\t%.1f\t%.1f\n", waits.name, waits.of.MeanMS, waits.of.P50MS, waits.of.P99MS, waits.of.MaxMS)
	}
	if o.Incomplete != "" {
		fmt.Fprintf(t, "  incomplete: %s\n", o.Incomplete)
	}
	if err := t.Flush(); err != nil || len(o.Different) == 0 {
		return err
	}
	fmt.Fprintln(w, "\n  the first that differ:")
	for _, d := range o.Different[:min(len(o.Different), differentShown)] {
		fmt.Fprintf(w, "  %s: %s, would be %s\n", d.ID, decisionText(d.Was), decisionText(d.Would))
	}
	return nil
}

// differentShown is how many requests that differ are named; --json lists more.
const differentShown = 10

func decisionText(f replay.Decision) string {
	switch {
	case f.Refused != "":
		return "refused: " + f.Refused
	case f.Prefill != "":
		return f.Prefill + " and " + f.Decode
	}
	return f.Decode
}
