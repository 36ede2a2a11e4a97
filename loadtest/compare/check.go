package compare

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// Check says why there is nothing to compare between b and a, the one before: one of
// them measured nothing, or they are searches that share no figure. A gate that
// passed on those would pass on a server that is gone.
func Check(a, b *report.Report) error {
	searches := a.Search != nil && b.Search != nil
	for _, side := range []struct {
		name string
		*report.Report
	}{{"BEFORE", a}, {"AFTER", b}} {
		if why, ok := empty(side.Report, searches); ok {
			return fmt.Errorf("%s holds no completed requests: nothing to compare%s", side.name, why)
		}
	}
	if searches && len(Reports(a, b, Options{}).Changes) == 0 {
		return errors.New("the two searches have no rate in common and neither found a highest one: nothing to compare; sweep the same rates in both")
	}
	return nil
}

// empty is whether nothing that is compared was completed, and what became of it.
func empty(r *report.Report, searches bool) (why string, ok bool) {
	all := []*measure.Summary{&r.Summary}
	if searches {
		for i := range r.Runs {
			all = append(all, &r.Runs[i].Summary)
		}
		for _, step := range r.Search.Steps {
			all = append(all, step.Summary)
		}
	}
	for _, s := range all {
		if s != nil && s.Completed > 0 {
			return "", false
		}
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{
		{r.Rejected, "rejected"}, {r.Errors, "failed"}, {r.TimedOut, "timed out"}, {r.Cancelled, "cancelled"}, {r.Unsent, "never sent"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	if len(parts) > 0 {
		why = fmt.Sprintf(" (of %d requests %s)", r.Requests, strings.Join(parts, ", "))
	}
	if r.Interrupted {
		why += " (the run was interrupted)"
	}
	return why, true
}
