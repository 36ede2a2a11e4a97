package evidence_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence"
	"github.com/tandem-serving/tandem/simulate"
)

// A shorter day is the committed one with all its times divided, and nothing else changed.
func TestShortDay(t *testing.T) {
	type day struct {
		Autoscale struct {
			StartTime time.Duration `yaml:"start-time"`
			DownAfter time.Duration `yaml:"down-after"`
		}
		Traffic struct {
			Rate     float64
			Duration time.Duration
			SLO      string
		}
		Events []struct {
			At    time.Duration
			For   time.Duration
			Times float64 `yaml:"rate-times"`
		}
	}
	read := func(times float64) (d day) {
		text, err := evidence.ShortDay(evidence.Options{Profiles: profiles}, times)
		if err == nil {
			err = yaml.Unmarshal([]byte(text), &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	whole, short := read(1), read(8)
	if whole.Traffic.Duration != 2*time.Hour || len(whole.Events) != 48 {
		t.Fatalf("%v with %d rates", whole.Traffic.Duration, len(whole.Events))
	}
	if short.Traffic.Duration != 15*time.Minute || short.Traffic.Rate != whole.Traffic.Rate || short.Traffic.SLO != whole.Traffic.SLO ||
		short.Autoscale.StartTime != whole.Autoscale.StartTime/8 || short.Autoscale.DownAfter != whole.Autoscale.DownAfter/8 {
		t.Errorf("%+v", short)
	}
	for i, e := range short.Events {
		if of := whole.Events[i]; e.At != of.At/8 || e.For != of.For/8 || e.Times != of.Times {
			t.Errorf("%+v became %+v", of, e)
		}
	}
}

// Worker-hours are those while requests come, of as many hours as the page says.
func TestWorkerHours(t *testing.T) {
	t.Parallel()
	const workers = 20
	got, of, err := evidence.FixedHours(t.Context(), evidence.Options{Profiles: profiles}, workers, 240)
	if err != nil || math.Abs(got-workers*of) > 0.001 {
		t.Errorf("%d workers have %v worker-hours in %v hours: %v", workers, got, of, err)
	}
}

func TestSizesOf(t *testing.T) {
	const day = 48 * time.Minute
	got := evidence.SizesOf([]simulate.Resize{{At: 0, Pool: "p", To: 2}, {At: 0, Pool: "d", To: 3}, {At: 90 * time.Second, Pool: "d", To: 5}, {At: 47 * time.Minute, Pool: "p", To: 1}}, day)
	if len(got) != 48 || !slices.Equal(got[:3], []float64{5, 7, 7}) || got[47] != 6 {
		t.Error(got)
	}
}
