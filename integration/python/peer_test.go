// Package python_test lets the KV transfer of services/kvtransfer talk to a sender
// and a receiver in another implementation of gRPC and protobuf.
package python_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

const (
	protoDir = "../../proto"
	// patience is far above what a transfer takes, also on a busy machine.
	patience = 2 * time.Minute

	layers      = 3
	headSize    = 16
	kvHeads     = 2
	blockTokens = 8
	blocks      = 11 // of the reservation
	held        = 2  // of them

	native = kvtransferv1.Encoding_ENCODING_NATIVE
	eight  = kvtransferv1.Encoding_ENCODING_INT8
)

// layout is one that can be encoded.
func layout() kvcache.Layout {
	return kvcache.Layout{
		ModelDigest: "peer", ArithmeticClass: "test/1", Layers: layers, KVHeads: kvHeads, HeadSize: headSize,
		ElementType: "bf16", BlockTokens: blockTokens, Order: "k-d2t2/v-t2d2/1", SliceBytes: 2 * kvHeads * headSize * blockTokens * 2,
	}
}

// python is an interpreter that has what the peers need. Without one the test is
// skipped, unless TANDEM_PYTHON names it or says "required".
func python(t *testing.T) string {
	t.Helper()
	names := []string{"python3", "/usr/bin/python3"}
	wanted := os.Getenv("TANDEM_PYTHON")
	if wanted != "" && wanted != "required" {
		names = []string{wanted}
	}
	problem := ""
	for _, name := range names {
		out, err := exec.CommandContext(t.Context(), name, "-c", "import grpc, google.protobuf").CombinedOutput()
		if err == nil {
			if out, err = exec.CommandContext(t.Context(), "protoc", "--version").CombinedOutput(); err == nil {
				return name
			}
			name = "protoc"
		}
		problem += name + ": " + err.Error() + " " + lastLine(out) + "; "
	}
	if wanted != "" {
		t.Fatalf("no Python with gRPC: %s", problem)
	}
	t.Skipf("no Python with gRPC, whose packages are python3-grpcio, python3-protobuf, protobuf-compiler and libprotobuf-dev in Debian: %s", problem)
	return ""
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// peer is a Python process.
type peer struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *json.Decoder
	stderr bytes.Buffer
	end    func() error
}

// run starts a program of this folder.
func run(t *testing.T, program string, args ...string) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &peer{t: t}
	p.cmd = exec.CommandContext(ctx, python(t), append([]string{"-B", program, "--proto", protoDir,
		"--layers", strconv.Itoa(layers), "--slice-bytes", strconv.Itoa(layout().SliceBytes), "--kv-heads", strconv.Itoa(kvHeads)}, args...)...)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = json.NewDecoder(stdout)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	p.end = func() error {
		if ended {
			return nil
		}
		ended = true
		err := errors.Join(stdin.Close(), p.cmd.Wait())
		cancel()
		return err
	}
	t.Cleanup(func() { _ = p.end() })
	return p
}

// says reads one line of JSON.
func (p *peer) says(into any) {
	p.t.Helper()
	if err := p.out.Decode(into); err != nil {
		p.t.Fatalf("%v says nothing: %v, %v\n%s", p.cmd.Args, err, p.end(), p.stderr.String())
	}
}

// exits wants it to end well.
func (p *peer) exits() {
	p.t.Helper()
	if err := p.end(); err != nil {
		p.t.Errorf("%v: %v\n%s", p.cmd.Args, err, p.stderr.String())
	}
}

// randomKV is all pages of a reservation, in a file as the sender reads it.
func randomKV(t *testing.T) (kv []byte, file string) {
	t.Helper()
	kv = make([]byte, blocks*layout().PageBytes())
	if _, err := rand.Read(kv); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(file, kv, 0o600); err != nil {
		t.Fatal(err)
	}
	return kv, file
}
