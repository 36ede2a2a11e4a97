package workload_test

import (
	"errors"
	"io"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Whatever is accepted as a distribution or a class makes sane requests.
func FuzzFlags(f *testing.F) {
	f.Add("uniform:100-900", "lognormal:5,2.5", "a=1,prompt=normal:5,1e3,output=exp:7,priority=-3", "exp:2")
	f.Add("normal:1e7,1e7", "512", "b=1e300", "uniform:1-8")
	f.Add("lognormal:1,16777216", "uniform:1-1", "x=0x1p-1000", "1")
	f.Fuzz(func(t *testing.T, prompt, output, class, turns string) {
		spec, err := parse("--prompt-tokens="+prompt, "--output-tokens="+output, "--class="+class, "--class=other=1", "--turns="+turns)
		if err != nil {
			return
		}
		source, err := spec.New(server)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			q, err := source.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if len(q.Prompt.TokenIDs) < 1 || q.MaxTokens < 1 || len(q.Prompt.TokenIDs)+q.MaxTokens > server.ContextTokens || q.Class == "" {
					t.Fatalf("%d tokens, %d wanted, class %q", len(q.Prompt.TokenIDs), q.MaxTokens, q.Class)
				}
				if q.Then == nil {
					break
				}
				if q, _ = q.Then(workload.Answer{TokenIDs: []uint32{1}}); q == nil {
					break
				}
			}
		}
	})
}

func FuzzTimes(f *testing.F) {
	f.Add("uniform:1s-10s")
	f.Add("lognormal:5s,1ns")
	f.Add("0")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := workload.ParseTimes(text)
		if err == nil && (!d.IsSet() || d.Empirical()) {
			t.Fatalf("%q is accepted as %+v", text, d)
		}
	})
}
