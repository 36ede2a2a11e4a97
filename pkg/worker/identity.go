package worker

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
)

// NewEpoch draws an incarnation epoch: a random number that is never 0 and is
// compared for equality only.
func NewEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return max(binary.LittleEndian.Uint64(b[:]), 1)
}

// NewID makes a worker id out of its role and host, such as
// "decode-host7-3f9a". Ids are unique among all workers.
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
