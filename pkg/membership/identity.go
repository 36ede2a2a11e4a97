package membership

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Identity is who a worker is.
type Identity struct {
	// ID is unique among all workers.
	ID string
	// Epoch is this incarnation's random number.
	Epoch uint64
	// Role is what it does.
	Role controlv1.Role
	// Addresses are where its gRPC server listens, best first.
	Addresses []string
	// KVAddresses are where it receives KV, best first, if that has a server of its own. Empty:
	// Addresses, or nowhere.
	KVAddresses []string
	// Engine is the engine's name; empty: it has none.
	Engine string
	// Version is the binary's.
	Version string
}

// ReceivesKVAt is where it receives KV, best first.
func (id Identity) ReceivesKVAt() []string {
	if len(id.KVAddresses) > 0 {
		return id.KVAddresses
	}
	return id.Addresses
}

// Record is that of a worker that serves, as far as it follows from who it is.
func (id Identity) Record() *controlv1.WorkerRecord {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return &controlv1.WorkerRecord{
		Id: id.ID, Role: id.Role, Epoch: id.Epoch, Addresses: id.Addresses, KvAddresses: id.KVAddresses,
		State:  controlv1.WorkerState_WORKER_STATE_SERVING,
		Engine: id.Engine, Version: id.Version, Host: host,
	}
}

// CheckEpoch refuses a call that is meant for another incarnation than own, such
// as one whose address this worker took over. Its error is a gRPC status.
func CheckEpoch(meant, own uint64) error {
	if meant == own {
		return nil
	}
	return rpc.Errorf(codes.FailedPrecondition, api.ReasonWrongEpoch,
		"this worker is incarnation %d, but the call is for %d: list the workers again", own, meant)
}

// NewEpoch draws an incarnation epoch: a random number that is never 0 and is
// compared for equality only.
func NewEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return max(binary.LittleEndian.Uint64(b[:]), 1)
}

// NewID makes a worker id out of its role and host, such as
// "decode-host7-3f9a01c2". Ids are unique among all workers.
func NewID(role string) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	var b [4]byte
	_, _ = rand.Read(b[:])
	host, _, _ = strings.Cut(host, ".")
	return role + "-" + host + "-" + hex.EncodeToString(b[:])
}
