package mesh_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

func TestLinesNameTheirPartOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		log  func(*slog.Logger)
		want string
	}{
		{"plain", func(l *slog.Logger) { l.Info("x") }, "msg=x worker=w1"},
		{"other attributes", func(l *slog.Logger) { l.With("a", 1).Info("x", "b", 2) }, "msg=x a=1 b=2 worker=w1"},
		{"a line that has it", func(l *slog.Logger) { l.Info("x", "worker", "w1", "b", 2) }, "msg=x worker=w1 b=2"},
		{"a logger that has it", func(l *slog.Logger) { l.With("worker", "w1").With("a", 1).Info("x") }, "msg=x worker=w1 a=1"},
		{"a group", func(l *slog.Logger) { l.WithGroup("g").Info("x", "a", 1) }, "msg=x worker=w1 g.a=1"},
	} {
		var out strings.Builder
		logger := slog.New(slog.NewTextHandler(&out, nil))
		c.log(mesh.WithAttribute(logger, slog.String("worker", "w1")))
		if _, got, _ := strings.Cut(strings.TrimSpace(out.String()), "level=INFO "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
