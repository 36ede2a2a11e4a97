package report_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
)

// written returns what f writes.
func written(t *testing.T, f func(io.Writer) error) string {
	t.Helper()
	var s strings.Builder
	if err := f(&s); err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// Table and page show the errors of failed requests. The JSON has null where there is no
// p99 of the client's lateness.
func TestFailuresAreTold(t *testing.T) {
	run := reporttest.Run(disaggregated, 1, 10*time.Second, 1)
	for _, r := range run.Records {
		r.Outcome, r.Code, r.Error = record.Failed, "INTERNAL", "out of <memory>"
	}
	r := reporttest.New("")
	r.SetRun(reporttest.Figures(run))
	want := fmt.Sprintf("INTERNAL, %d requests, the first: out of ", r.Requests)
	if got := written(t, func(w io.Writer) error { return r.WriteTable(w, 100) }); !strings.Contains(got, want+"<memory>") {
		t.Errorf("the table has no %q:\n%s", want, got)
	}
	if got := written(t, func(w io.Writer) error { return report.WriteHTML(w, r) }); !strings.Contains(got, want+"&lt;memory&gt;") {
		t.Errorf("the page has no %q", want)
	}
	if got := written(t, r.WriteJSON); r.Client.DispatchDelayP99 != nil || !strings.Contains(got, `"dispatch_delay_p99_ms": null`) {
		t.Errorf("the p99 of %d requests is %v", r.Requests, r.Client.DispatchDelayP99)
	}
}
