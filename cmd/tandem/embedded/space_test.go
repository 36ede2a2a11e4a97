package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
)

// A disk that fills is said once, and again only after it had space.
func TestDiskThatFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(1 << 30)
		var log bytes.Buffer
		watch := embedded.SpaceWatch{
			Dir: "/data", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Free: func(dir string) (int64, error) {
				if bytes := free.Load(); dir == "/data" && bytes >= 0 {
					return bytes, nil
				}
				return 0, errors.New("no such disk")
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); watch.Run(ctx) }()
		for _, step := range []struct {
			free       int64
			warns, oks int // said so far
		}{
			{1 << 30, 0, 0}, {-1, 0, 0}, {10 << 20, 1, 0}, {0, 1, 0}, {-1, 1, 0}, {70 << 20, 1, 0}, {1 << 30, 1, 1}, {0, 2, 1},
		} {
			free.Store(step.free)
			time.Sleep(time.Minute)
			synctest.Wait()
			if warns, oks := strings.Count(log.String(), "is almost full: free some space"), strings.Count(log.String(), "has space again"); warns != step.warns || oks != step.oks {
				t.Errorf("%d bytes free: warned %d times and told of space %d times, want %d and %d:\n%s", step.free, warns, oks, step.warns, step.oks, &log)
			}
		}
		if !strings.Contains(log.String(), "folder=/data free_bytes=10485760") {
			t.Errorf("it does not say where:\n%s", &log)
		}
		cancel()
		<-done
	})
}

// A new etcd needs more than one that has its log already.
func TestStartBytes(t *testing.T) {
	dir := t.TempDir()
	before := embedded.StartBytes(dir)
	used(t, dir)
	if after := embedded.StartBytes(dir); after != embedded.LeastFreeBytes() || before <= after {
		t.Errorf("a new one needs %d bytes, and then %d", before, after)
	}
}
