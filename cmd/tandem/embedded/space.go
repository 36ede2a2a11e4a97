package embedded

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/tandem-serving/tandem/pkg/diskspace"
)

// spaceEvery is how often the free space is looked at.
const spaceEvery = 5 * time.Second

// SpaceWatch says, once each time, that the disk of etcd's data fills up: etcd itself says
// nothing until a write fails, and that is its end.
type SpaceWatch struct {
	// Dir is the folder of the data.
	Dir string
	// Free is how many bytes may still be written to the disk of a folder. Nil: diskspace.Free.
	Free   func(dir string) (int64, error)
	Logger *slog.Logger
}

// Run watches until ctx ends.
func (w *SpaceWatch) Run(ctx context.Context) {
	free := w.Free
	if free == nil {
		free = diskspace.Free
	}
	least := LeastFreeBytes()
	ticker := time.NewTicker(spaceEvery)
	defer ticker.Stop()
	for low := false; ; {
		switch left, err := free(w.Dir); {
		case err != nil: // etcd says what it cannot do
		case left < least && !low:
			low = true
			w.Logger.Warn("the disk of etcd's data is almost full: free some space there; requests are served all the same, but etcd fails when it is full, and workers can no longer join or leave then",
				slog.String("folder", w.Dir), slog.Int64("free_bytes", left), slog.Int64("least_bytes", least))
		case left >= 2*least && low:
			low = false
			w.Logger.Info("the disk of etcd's data has space again", slog.String("folder", w.Dir), slog.Int64("free_bytes", left))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// LeastFreeBytes is how much space the disk of etcd's data needs: etcd takes that of the next
// segment of its log before it needs it.
func LeastFreeBytes() int64 { return wal.SegmentSizeBytes }

// newEtcdBytes is what an etcd takes before long: three segments of its log, and its database.
const newEtcdBytes = 200e6

// StartBytes is how much space the disk of a folder needs for etcd to start on the data in it, or
// as a new one.
func StartBytes(dataDir string) int64 {
	if _, err := os.Stat(filepath.Join(dataDir, "etcd", "member")); err == nil {
		return LeastFreeBytes()
	}
	return newEtcdBytes
}
