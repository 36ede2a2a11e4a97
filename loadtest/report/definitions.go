package report

import (
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// WriteDefinitions writes what each figure is and what other tools call it, for a
// terminal of so many columns.
func WriteDefinitions(w io.Writer, width int) error {
	t := &table{width: min(max(width, minWidth), maxWidth)}
	for _, d := range measure.Definitions() {
		t.raw("%s", d.Name)
		t.line("  ", "%s", d.Text)
		for _, other := range []struct{ tool, name string }{
			{"vllm bench serve", d.VLLM}, {"AIPerf", d.AIPerf}, {"SGLang", d.SGLang}, {"MLPerf", d.MLPerf},
		} {
			if other.name != "" {
				t.line("    ", "%s: %s", other.tool, other.name)
			}
		}
	}
	if _, err := io.WriteString(w, t.text.String()); err != nil {
		return fmt.Errorf("write definitions: %w", err)
	}
	return nil
}
