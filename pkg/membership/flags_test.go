package membership_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/membership"
)

func TestStateFolder(t *testing.T) {
	for _, c := range []struct {
		asked string
		env   map[string]string
		want  string
	}{
		{"/state", map[string]string{"XDG_STATE_HOME": "/xdg"}, "/state"},
		{"here", nil, "here"},
		{"off", map[string]string{"HOME": "/somebody"}, ""},
		{"", map[string]string{"HOME": "/somebody"}, ""},
		{"auto", map[string]string{"HOME": "/somebody"}, "/somebody/.local/state/tandem"},
		{"auto", map[string]string{"HOME": "/somebody", "XDG_STATE_HOME": "/xdg"}, "/xdg/tandem"},
		{"auto", map[string]string{"HOME": "/somebody", "XDG_STATE_HOME": "relative"}, "/somebody/.local/state/tandem"},
		{"auto", map[string]string{"HOME": "/somebody", "XDG_STATE_HOME": "/xdg", "STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"},
		// A container from scratch has no user with a home.
		{"auto", map[string]string{"HOME": "/"}, ""},
		{"auto", nil, ""},
	} {
		cfg := membership.LastViewConfig{StateDir: c.asked}
		if got := cfg.Folder(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%q with %v: %q, want %q", c.asked, c.env, got, c.want)
		}
	}
}
