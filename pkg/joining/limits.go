package joining

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Limits bound every request. Operators choose them.
type Limits struct {
	// MaxAttempts is the maximum number of attempts of a request in which workers failed.
	MaxAttempts int
	// MaxRequestTime bounds a request; its client may set an earlier deadline.
	MaxRequestTime time.Duration
}

// RegisterFlags adds the flags, each name after prefix, with the defaults.
func (l *Limits) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	fs.IntVar(&l.MaxAttempts, prefix+"max-attempts", 3, "maximum attempts of a request if workers fail")
	fs.DurationVar(&l.MaxRequestTime, prefix+"max-request-time", 10*time.Minute, "maximum time of a request; its own deadline may be earlier")
}

// Validate checks ranges; its error names every field that is wrong.
func (l Limits) Validate() error {
	var errs []error
	if l.MaxAttempts <= 0 {
		errs = append(errs, fmt.Errorf("max-attempts is %d: it must be above 0", l.MaxAttempts))
	}
	if l.MaxRequestTime <= 0 {
		errs = append(errs, fmt.Errorf("max-request-time is %v: it must be above 0", l.MaxRequestTime))
	}
	return errors.Join(errs...)
}

const (
	// DefaultMaxRefusals is Params.MaxRefusals of a router; between two refusals the
	// policy waits ever longer.
	DefaultMaxRefusals = 64
	// DefaultLinger is Params.Linger of a router.
	DefaultLinger = time.Second
)
