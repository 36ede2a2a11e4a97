package membership

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

// What is taken in from etcd, from a file or from other routers. Whoever can write
// there must not be able to take this process's memory or time: a record of ours has
// some 700 bytes, and a mesh some thousands of them.
const (
	// maxValueBytes bounds a record, and the policy.
	maxValueBytes = 16 << 10
	// maxIDBytes bounds a worker's id.
	maxIDBytes = 256
	// maxAddresses bounds the addresses of one worker.
	maxAddresses = 16
	// MaxWorkers bounds the workers of a view. Of more the oldest are in it: what
	// floods the membership does not push out who was there before.
	MaxWorkers = 10_000
	// maxKeys and maxListedBytes bound what is listed at all: beyond them, the last
	// view stands.
	maxKeys        = 100_000
	maxListedBytes = 64 << 20
	// notifyLeast is the shortest time between two views of one watch, so that a
	// thousand changes in a second are not a thousand views of thousands of workers.
	notifyLeast = 100 * time.Millisecond
)

// readValue reads a value of etcd into a message.
func readValue(value []byte, into proto.Message) error {
	if len(value) > maxValueBytes {
		return fmt.Errorf("it has more than %d bytes", maxValueBytes)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, into); err != nil {
		return fmt.Errorf("parse it: %w", err)
	}
	return nil
}

// readRecord is the record of an entry. The error says why it counts for nothing.
func readRecord(entry Entry) (*controlv1.WorkerRecord, error) {
	record := &controlv1.WorkerRecord{}
	if err := readValue(entry.Value, record); err != nil {
		return nil, err
	}
	if err := checkRecord(record); err != nil {
		return nil, err
	}
	if WorkerKey(record.GetRole(), record.GetId()) != entry.Key {
		return nil, errors.New("it belongs under another key")
	}
	return record, nil
}

// CheckID says why nobody can have an id: its record would count for nothing.
func CheckID(id string) error {
	switch {
	case id == "" || len(id) > maxIDBytes:
		return fmt.Errorf("the id has %d bytes, not 1 to %d", len(id), maxIDBytes)
	case !utf8.ValidString(id):
		return fmt.Errorf("the id %q is not UTF-8", id)
	}
	return nil
}

// checkRecord says why a record counts for nothing.
func checkRecord(record *controlv1.WorkerRecord) error {
	if err := CheckID(record.GetId()); err != nil {
		return err
	}
	switch {
	case record.GetRole() == controlv1.Role_ROLE_UNSPECIFIED || controlv1.Role_name[int32(record.GetRole())] == "":
		return fmt.Errorf("%d is not a role", record.GetRole())
	case len(record.GetAddresses()) > maxAddresses || len(record.GetKvAddresses()) > maxAddresses:
		return fmt.Errorf("it has %d addresses and %d for KV, more than %d", len(record.GetAddresses()), len(record.GetKvAddresses()), maxAddresses)
	case proto.Size(record) > maxValueBytes:
		return fmt.Errorf("it has more than %d bytes", maxValueBytes)
	}
	return nil
}

// newThrottle bounds how often a watch says that something in etcd is wrong: there could be as
// many such lines as there are keys.
func newThrottle() logthrottle.Throttle {
	return logthrottle.Throttle{Every: time.Minute, Burst: 9}
}

// shown is a key as a log line has it.
func shown(key string) string {
	const most = 200
	if len(key) > most {
		return key[:most] + "…"
	}
	return key
}
