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
		Short: "Say what changed between two reports, and fail if something got worse",
		Long: `Compares two reports that 'bench serve --out FILE' wrote. A change counts if it is
larger than --threshold and the 95% confidence intervals do not overlap, each as much
wider as it takes for all comparisons to hold together. The exit status is 1 if a
figure that decides got worse by that measure: the median or p99 of TTFT, ITL, TPOT or
E2E, goodput, attainment, the highest rate, or the verdict; or if a rate fell to 0.
Others are only told. It is 1 too if a report holds no completed requests.`,
		Example: `  tandem bench serve --rate 20 --out before.json
  tandem bench serve --rate 20 --out after.json
  tandem bench compare before.json after.json --threshold 0.1`,
		Args: exactly("the report from before", "the report from after"),
	}
	threshold := cmd.Flags().Float64("threshold", compare.DefaultThreshold, "least relative change that counts: 0.05 is 5%")
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
