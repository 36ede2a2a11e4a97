package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// RecordConfig says whether routers and workers record what they take in and do.
type RecordConfig struct {
	// Dir is the folder of the event logs; empty: nothing is recorded.
	Dir string
	// Limit bounds one log.
	Limit bytesize.Size
}

// RegisterFlags adds the flags.
func (c *RecordConfig) RegisterFlags(fs *pflag.FlagSet) {
	c.Limit = 1 << 30
	fs.StringVar(&c.Dir, "record", "", "folder for event logs, for tandem replay: all that a router or worker takes in and decides, prompts as token ids included; empty: nothing is recorded")
	fs.Var(&c.Limit, "record-limit", "largest size of one event log, at which recording ends; every start makes a new file, so remove old ones")
}

// leastRecordLimit has room for what a log begins with in a mesh of a thousand workers.
const leastRecordLimit = 1 << 20

// Validate checks ranges.
func (c *RecordConfig) Validate() error {
	if c.Limit < leastRecordLimit {
		return fmt.Errorf("--record-limit: %s is too little: give at least %s", c.Limit.String(), "1 MiB")
	}
	return nil
}

// newEventLog begins the event log of a part, which is closed by closeEventLog, or when the
// process has stopped all else; nil: nothing is recorded.
func (p *process) newEventLog(identity membership.Identity, logger *slog.Logger) (*eventlog.Log, error) {
	config := p.options.Record
	if config.Dir == "" || identity.Role == controlv1.Role_ROLE_KVTRANSFER {
		return nil, nil
	}
	codecs, err := replay.NewCodecs()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("--record: %w: name a folder that can be made", err)
	}
	path := filepath.Join(config.Dir, fmt.Sprintf("%s-%016x.events", url.PathEscape(identity.ID), identity.Epoch))
	log, err := eventlog.Create(path, eventlog.Options{
		Codecs: codecs, Build: telemetry.ReadBuild().String(), Limit: int64(config.Limit), Logger: logger,
	})
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	logger.Info("events are recorded", slog.String("file", path))
	p.logs = append(p.logs, log)
	return log, nil
}

// closeEventLog closes the log of a part that has ended before the process; nil: there is none.
func (p *process) closeEventLog(log *eventlog.Log) error {
	if log == nil {
		return nil
	}
	p.logs = slices.DeleteFunc(p.logs, func(l *eventlog.Log) bool { return l == log })
	return log.Close()
}

// newRecording closes the event logs when all that writes into them has stopped.
func (p *process) newRecording(context.Context) ([]lifecycle.Service, error) {
	return []lifecycle.Service{{Name: "event logs", Close: func() error {
		var errs []error
		for _, log := range p.logs {
			errs = append(errs, log.Close())
		}
		return errors.Join(errs...)
	}}}, nil
}
