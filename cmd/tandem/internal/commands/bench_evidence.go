package commands

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
)

func newBenchEvidenceCommand() *cobra.Command {
	var (
		o        evidence.Options
		sections []string
		out      string
		check    string
	)
	cmd := &cobra.Command{
		Use:   "evidence",
		Short: "Measure where disaggregation pays, and write docs/evidence.md",
		Long: `Measures each part of docs/evidence.md on virtual time, beside the figures of the papers,
and writes the page, its pictures and the figures as JSON. Section live runs meshes as
processes of this program, on real time: run nothing else meanwhile. 'make evidence' runs
all. Run it in a checkout: it reads step times of docs/profiles.

--small is what CI runs: little of each part, in seconds. It writes nothing, and with
--check it fails if a headline ratio moved by more than its noise.

The page has tables that need recorded traffic. With --traces they are measured again.`,
		Example: `  tandem bench evidence
  tandem bench evidence --section distserve --out /tmp/evidence.md
  tandem bench evidence --small --check docs/evidence.json`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&sections, "section", nil, "part to measure, repeated for others: "+strings.Join(evidence.Names(), ", ")+" (default: all); the others stay as they are")
	oneOf(cmd, "section", evidence.Names()...)
	fs.BoolVar(&o.Small, "small", false, "measure little of each part, and write nothing")
	fs.BoolVar(&o.Long, "long", false, "also measure what takes longer than all the rest")
	fs.StringVar(&o.Profiles, "profiles", "docs/profiles", "folder with step times")
	fs.StringVar(&o.Traces, "traces", "", "folder with recorded traffic: AzureLLMInferenceTrace_conv.csv, conversation_trace.jsonl")
	fs.StringVar(&out, "out", "docs/evidence.md", "page to write; the figures go beside it as JSON, pictures into its folder images")
	fs.StringVar(&check, "check", "", "JSON file of figures: fail if a headline ratio of --small moved by more than its noise")
	asJSON := addBenchJSON(cmd, "print one JSON object: the sections that were measured")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted, err := evidence.Named(sections)
		switch {
		case err != nil:
			return usageError(cmd, "--section: "+err.Error())
		case check != "" && !o.Small:
			return usageError(cmd, "--check is for the small version: add --small")
		case o.Small && o.Long:
			return usageError(cmd, "--small and --long exclude one another: pass one of them")
		}
		if err := o.Check(); err != nil {
			return usageError(cmd, err.Error())
		}
		file := check
		if !o.Small {
			if err := checkOutput(out); err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			file = strings.TrimSuffix(out, filepath.Ext(out)) + ".json"
		}
		document, err := evidence.ReadDocument(file)
		if err != nil {
			return err
		}
		var mutex sync.Mutex
		o.Say = func(text string) {
			mutex.Lock()
			defer mutex.Unlock()
			fmt.Fprintln(cmd.ErrOrStderr(), text)
		}
		results, err := evidence.Run(cmd.Context(), wanted, o)
		if err != nil {
			return interruptedOr(cmd.Context(), err)
		}
		if *asJSON {
			if err := indented(cmd.OutOrStdout(), map[string]any{"sections": results}); err != nil {
				return err
			}
		} else if err := evidence.WriteRatios(cmd.OutOrStdout(), results); err != nil {
			return err
		}
		if o.Small {
			if check == "" {
				return nil
			}
			return document.Check(results)
		}
		// The same with little, for CI to compare with.
		o.Small, o.Long = true, false
		small, err := evidence.Run(cmd.Context(), wanted, o)
		if err != nil {
			return interruptedOr(cmd.Context(), err)
		}
		return writeEvidence(results, small, out, file)
	}
	return cmd
}

// writeEvidence puts new results, and their small versions, into the page and its figures, and
// writes their pictures.
func writeEvidence(results, small []*evidence.Result, page, figures string) error {
	d, err := evidence.ReadDocument(figures) // others may have written it meanwhile
	if err != nil {
		return err
	}
	for i, r := range results {
		d.Put(r)
		d.Small[r.Section] = small[i].Ratios
	}
	errs := []error{writeOutput(page, d.WriteMarkdown), writeOutput(figures, d.WriteJSON)}
	images := filepath.Join(filepath.Dir(page), "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	for _, r := range results {
		for _, p := range r.Pictures {
			errs = append(errs, writeOutput(filepath.Join(images, p.Name+".svg"), func(w io.Writer) error {
				_, err := w.Write(p.SVG)
				return err
			}))
		}
	}
	return errors.Join(errs...)
}
