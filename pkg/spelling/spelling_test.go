package spelling_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/spelling"
)

func TestCheck(t *testing.T) {
	names := []string{"decode", "prefill"}
	for name, want := range map[string]string{
		"decode": "",
		"prefil": `there is no role "prefil", did you mean "prefill"?`,
		"pigeon": `there is no role "pigeon": choose one of decode, prefill`,
	} {
		got := ""
		if err := spelling.Check("role", name, names); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		name  string
		names []string
		want  string
		near  bool
	}{
		{"prefil", []string{"decode", "prefill"}, "prefill", true},
		{"temp", []string{"help", "stop", "temperature"}, "temperature", true},
		{"top", []string{"stop", "top-p", "top-k", "top-logprobs"}, "top-k", true},
		{"rout", []string{"route", "root", "router-policy"}, "route", true},
		{"te", []string{"to", "temperature"}, "to", true},
		{"decoed", []string{"mode", "decode"}, "decode", true},
		{"pigeon", []string{"decode", "prefill"}, "decode", false},
		{"x", nil, "", false},
	} {
		if got, near := spelling.Nearest(c.name, slices.Values(c.names)); got != c.want || near != c.near {
			t.Errorf("%q among %q: %q, %t, want %q, %t", c.name, c.names, got, near, c.want, c.near)
		}
	}
}
