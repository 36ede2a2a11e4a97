package commands

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/loadtest/compare"
	"github.com/tandem-serving/tandem/loadtest/report"
)

func newBenchCompareCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare BEFORE AFTER",
		Short: "Compare two reports, and fail if a figure got significantly worse",
		Long: `Compares two reports that 'bench serve --out FILE' wrote. A change is significant if
it is larger than --threshold and the 95% confidence intervals do not overlap. The
intervals are widened so that they hold for all comparisons together.

The exit status is 1 if one of these got significantly worse: the median or p99 of
TTFT, ITL, TPOT or E2E, goodput, attainment, the highest rate, or the verdict. It is
also 1 if a rate fell to 0, or if a report holds no completed requests. Changes of
other figures are only printed.`,
		Example: `  tandem bench serve --rate 20 --out before.json
  tandem bench serve --rate 20 --out after.json
  tandem bench compare before.json after.json --threshold 0.1`,
		Args: exactly("the report from before", "the report from after"),
	}
	threshold := cmd.Flags().Float64("threshold", compare.DefaultThreshold, "smallest relative change that counts: 0.05 is 5%")
	asJSON := addJSON(cmd, "print the comparison as JSON")
	onlyOnCommandLine(cmd, "threshold")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !(*threshold > 0 && *threshold < 100) {
			return usageError(cmd, fmt.Sprintf("--threshold: %v is outside 0 to 100", *threshold))
		}
		before, err := readReport(args[0])
		if err != nil {
			return err
		}
		after, err := readReport(args[1])
		if err != nil {
			return err
		}
		if err := compare.Check(before, after); err != nil {
			return err
		}
		found := compare.Reports(before, after, compare.Options{Threshold: *threshold})
		if *asJSON {
			err = indented(cmd.OutOrStdout(), found)
		} else {
			err = found.WriteTable(cmd.OutOrStdout())
		}
		if err == nil && found.Regressions > 0 {
			err = fmt.Errorf("%d figures got worse by more than chance and by more than %.3g%%", found.Regressions, 100**threshold)
		}
		return err
	}
	return cmd
}

func readReport(path string) (*report.Report, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: pass two files that 'bench serve --out FILE' wrote", err)
	}
	defer file.Close()
	r, err := report.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
