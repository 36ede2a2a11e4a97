package doctor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A question that gets no answer ends at its deadline, and keeps nobody waiting.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		hangs := func(ctx context.Context) []doctor.Check {
			<-ctx.Done()
			return []doctor.Check{{Name: "hangs", Status: doctor.Failed}}
		}
		alsoHangs := func(ctx context.Context) []doctor.Check { return hangs(ctx) }
		quick := func(context.Context) []doctor.Check {
			return []doctor.Check{{Name: "quick", Status: doctor.OK}, {Name: "another", Status: doctor.OK}}
		}
		checks := doctor.Run(t.Context(), 3*time.Second, hangs, quick, alsoHangs)
		if took := time.Since(began); took != 3*time.Second || len(checks) != 4 || checks[0].Name != "hangs" || checks[1].Name != "quick" {
			t.Errorf("after %v: %v", took, checks)
		}
		if n := doctor.Count(checks, doctor.Failed); n != 2 {
			t.Errorf("%d have failed", n)
		}
	})
}
