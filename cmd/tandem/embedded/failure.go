package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcd answers data that it cannot read, and a disk that fails later, with a
// panic or the end of the process, some of it on goroutines of its own. What it
// says through its logger before it does so is caught here and becomes an error.
// A panic without that on a goroutine of etcd's cannot be caught by anybody.

// failure is the first failure of an etcd; it is a zap hook for entries that end etcd. It is safe
// for concurrent use.
type failure struct {
	once     sync.Once
	happened chan struct{} // closed when err is set
	err      error
}

func newFailure() *failure { return &failure{happened: make(chan struct{})} }

// OnWrite keeps what etcd says and ends the goroutine that said it, in place of
// the process.
func (f *failure) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, is := field.Interface.(error); is && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	f.add(err)
	runtime.Goexit()
}

// add keeps the first error: what comes after it follows from it.
func (f *failure) add(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.happened)
	})
}

// logger is silent but for what ends etcd.
func (f *failure) logger() *zap.Logger {
	return zap.NewNop().WithOptions(zap.WithPanicHook(f), zap.WithFatalHook(f))
}

// startGrace is how long a start may still take when its context has ended.
const startGrace = 3 * time.Second

// start starts etcd, unless ctx ends first: a disk may keep it for ever. After a failure etcd
// may keep goroutines and files that nothing can close: the process is about to end.
func (f *failure) start(ctx context.Context, config *embed.Config) (*embed.Etcd, error) {
	started, left := make(chan *embed.Etcd), make(chan struct{})
	defer close(left)
	go func() {
		defer func() {
			switch reason := recover().(type) {
			case nil:
			case runtime.Error: // says nothing to people
				f.add(errors.New("its files are damaged"))
			default:
				f.add(fmt.Errorf("%v", reason))
			}
		}()
		err := checkDatabase(config.Dir)
		if err != nil {
			f.add(err)
			return
		}
		server, err := embed.StartEtcd(config)
		if err != nil {
			f.add(err)
			return
		}
		select {
		case started <- server:
		case <-left:
			server.Close()
		}
	}()
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(startGrace, func() { close(late) }) })
	defer stop()
	select {
	case server := <-started:
		return server, nil
	case <-f.happened:
		return nil, f.err
	case <-late:
		return nil, ctx.Err()
	}
}

// databaseTimeout bounds the wait for another process that has the database open.
const databaseTimeout = time.Second

// checkDatabase reads all of etcd's database below dir, if there is one. etcd
// opens it on a goroutine of its own, where damage ends the process.
func checkDatabase(dir string) (err error) {
	name := filepath.Join("member", "snap", "db")
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		if at, is := errors.AsType[*fs.PathError](err); is {
			err = at.Err // the path is in the message already
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	// The file is mapped: pages that are not in it fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%s is damaged: %v", name, reason)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: databaseTimeout})
	if err != nil {
		return fmt.Errorf("%s is not a database: %w", name, err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%s has %d bytes of %d", name, info.Size(), tx.Size())
		}
		return tx.ForEach(func(_ []byte, bucket *bbolt.Bucket) error {
			return bucket.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	return errors.Join(err, db.Close())
}
