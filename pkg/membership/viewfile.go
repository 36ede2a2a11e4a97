package membership

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// A view file is one line that says what follows, and the view as protobuf JSON:
//
//	tandem-view 1 bytes=<length> crc32c=<8 hexadecimal digits>
//	{"router":…}
const (
	viewFileVersion = 1
	viewFileHeader  = "tandem-view %d bytes=%d crc32c=%08x\n"
	// maxViewFileBytes bounds the file: thousands of workers have some megabytes.
	maxViewFileBytes = 32 << 20
	maxHeaderBytes   = 80
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ViewFile is the file in a folder for the last view of the mesh with these etcd
// endpoints. Routers of one mesh on one machine may share it: each writes the same.
func ViewFile(folder string, endpoints []string) string {
	sum := fnv.New64a()
	for _, endpoint := range slices.Sorted(slices.Values(endpoints)) {
		_, _ = io.WriteString(sum, strings.TrimSuffix(endpoint, "/")+"\n")
	}
	return filepath.Join(folder, fmt.Sprintf("view-%016x", sum.Sum64()))
}

// encodeView is what a file with a view holds.
func encodeView(view *controlv1.MembershipView) ([]byte, error) {
	body, err := protojson.Marshal(view)
	if err != nil {
		return nil, err
	}
	data := fmt.Appendf(nil, viewFileHeader, viewFileVersion, len(body), crc32.Checksum(body, castagnoli))
	if data = append(data, body...); len(data) > maxViewFileBytes {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(data), maxViewFileBytes)
	}
	return data, nil
}

// decodeView reads what encodeView wrote.
func decodeView(data []byte) (*controlv1.MembershipView, error) {
	header, body, found := bytes.Cut(data, []byte("\n"))
	if !found || len(header) > maxHeaderBytes {
		return nil, errors.New("it is not a view file")
	}
	var version, length int
	var sum uint32
	if _, err := fmt.Sscanf(string(header)+"\n", viewFileHeader, &version, &length, &sum); err != nil {
		return nil, errors.New("it is not a view file")
	}
	switch {
	case version != viewFileVersion:
		return nil, fmt.Errorf("it has version %d, not %d", version, viewFileVersion)
	case length != len(body):
		return nil, fmt.Errorf("it has %d bytes, but its header says %d", len(body), length)
	case sum != crc32.Checksum(body, castagnoli):
		return nil, errors.New("it is damaged: its checksum does not match")
	}
	view := &controlv1.MembershipView{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, view); err != nil {
		return nil, err
	}
	return view, nil
}

// readViewFile reads a view. fs.ErrNotExist says that there is none.
func readViewFile(path string) (*controlv1.MembershipView, error) {
	data, err := boundedfile.Read(path, maxViewFileBytes)
	if err != nil {
		return nil, err
	}
	return decodeView(data)
}

// writeViewFile replaces a view, or leaves the old one as it was. It makes the folder
// if need be. If another process writes the same file now, that one's will do.
func writeViewFile(path string, view *controlv1.MembershipView) error {
	data, err := encodeView(view)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".new" // one name, so that a process that dies leaves one file at most
	file, err := os.OpenFile(next, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // and with it the lock
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", next, err)
	}
	if !isStill(next, file) {
		return nil // it became the view while this process waited for the lock
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// isStill says whether an open file is the one of that name.
func isStill(path string, file *os.File) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}

// syncFolder makes a rename last.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}
