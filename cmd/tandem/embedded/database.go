package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

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
		var at *fs.PathError
		if errors.As(err, &at) {
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
