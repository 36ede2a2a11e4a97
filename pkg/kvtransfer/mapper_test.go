package kvtransfer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// mapperPlan makes this test binary a mapper: a sender in a process of its own that maps the
// receiver's pages, opens a transfer, and then does as it is told, right or wrong.
const mapperPlan = "KVTRANSFER_TEST_MAPPER"

type mapperArguments struct {
	Address string
	Ticket  json.RawMessage
}

func runMapper(plan string) int {
	if err := serveMapper(plan, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveMapper writes a line when the transfer is open, and one for each order that it carried out.
func serveMapper(plan string, in io.Reader, out io.Writer) error {
	var arguments mapperArguments
	if err := json.Unmarshal([]byte(plan), &arguments); err != nil {
		return err
	}
	ticket := new(kvtransferv1.Ticket)
	if err := protojson.Unmarshal(arguments.Ticket, ticket); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := rpc.Dial(arguments.Address, kvtransfer.Dialing(rpc.ClientConfig{}))
	if err != nil {
		return err
	}
	stream, err := kvtransferv1.NewKVTransferClient(conn).Stream(ctx)
	if err != nil {
		return err
	}
	exchange := func(m *kvtransferv1.SenderMessage) (*kvtransferv1.ReceiverMessage, error) {
		if err := stream.Send(m); err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	layout := kvtransfertest.Layout(layers, sliceBytes)
	hello, err := exchange(&kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
		Sender: "mapper", Epoch: 1, Version: 2, LayoutDigest: layout.Digest(), Session: 1}}})
	if err != nil {
		return err
	}
	shared := hello.GetHello().GetShared()
	mapping, err := kvtransfer.MapPages(ctx, kvtransfer.MapRequest{
		Address: arguments.Address, Socket: shared.GetSocket(), Key: shared.GetKey(), TransferID: ticket.GetTransferId(), Secret: ticket.GetSecret(), Layout: layout,
	})
	if err != nil {
		return err
	}
	open := openMessage(ticket)
	open.GetOpen().Encoding = kvtransferv1.Encoding_ENCODING_SHARED
	answer, err := exchange(open)
	if err != nil {
		return err
	}
	var pages []kvcache.BlockID
	for _, page := range answer.GetAccept().GetPages() {
		pages = append(pages, kvcache.BlockID(page))
	}
	if len(pages) == 0 {
		return fmt.Errorf("open is answered by %v", answer)
	}
	if err := mapping.Open(pages); err != nil {
		return err
	}
	fmt.Fprintln(out, "open")
	for lines := bufio.NewScanner(in); lines.Scan(); fmt.Fprintln(out, lines.Text()) {
		switch lines.Text() {
		case "leave": // without a word to those who pass the pages
			if err := conn.Close(); err != nil {
				return err
			}
		case "write":
			mapping.View(0, pages[0])[0] ^= 0xff
		case "unmap":
			mapping.Close()
		}
	}
	return nil
}

// mapper is such a process, seen from the test.
type mapper struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err bytes.Buffer
}

func startMapper(t *testing.T, ticket *kvtransferv1.Ticket) *mapper {
	t.Helper()
	text, err := protojson.Marshal(ticket)
	if err != nil {
		t.Fatal(err)
	}
	addresses := ticket.GetAddresses()
	plan, err := json.Marshal(mapperArguments{Address: addresses[len(addresses)-1], Ticket: text})
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &mapper{t: t, cmd: exec.Command(binary)}
	m.cmd.Env, m.cmd.Stderr = append(os.Environ(), mapperPlan+"="+string(plan)), &m.err
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.out = bufio.NewReader(out)
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	m.hear("open")
	return m
}

func (m *mapper) hear(want string) {
	m.t.Helper()
	if line, err := m.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		m.t.Fatalf("the mapper says %q, %v: %s", line, err, m.err.String())
	}
}

// do gives an order and waits until it was carried out.
func (m *mapper) do(order string) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.in, order); err != nil {
		m.t.Fatal(err)
	}
	m.hear(order)
}

// kill ends the process. A second call does nothing.
func (m *mapper) kill() {
	if m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait() // it was killed
	}
}

// eventually waits for what other goroutines do.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit, tick := time.NewTimer(time.Minute), time.NewTicker(time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("%s: it does not come", what)
		}
	}
}

func (o *outcome) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// A sender whose streams have ended can still write into pages that it has mapped. Its blocks
// stay in quarantine until it has unmapped them or its process has ended, and it gets no second
// mapping meanwhile. Others go on.
func TestQuarantineLastsAsLongAsTheMapping(t *testing.T) {
	for end, happen := range map[string]func(*mapper){
		"the process is killed":  (*mapper).kill,
		"the pages are unmapped": func(m *mapper) { m.do("unmap") },
	} {
		t.Run(end, func(t *testing.T) {
			g := newSocketRig(t, "shm", 1, kvtransfertest.NewHostPages)
			ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
			m := startMapper(t, ticket)
			m.do("leave")
			eventually(t, "the end of the streams", func() bool { return isBroken(o.failed()) && g.receiver.Stats().Streams == 0 })
			before := g.to.Page(0)
			m.do("write")
			if bytes.Equal(before, g.to.Page(0)) {
				t.Error("the process cannot write the page: the test shows nothing")
			}
			if s := g.receiver.Stats(); o.isDrained() || s.Ending != 1 || s.Mappings != 1 {
				t.Errorf("blocks that can be written are free: drained %v, %+v", o.isDrained(), s)
			}
			ticket, other := g.reserve(kvcache.BlockRange(8, 4), 0, 4)
			tr := g.open(ticket)
			sendAll(tr, kvcache.BlockRange(0, 4), 0, 4)
			tr.Commit(nil)
			wait(t, "another transfer", other.over)
			g.checkPages(kvcache.BlockRange(0, 4), kvcache.BlockRange(8, 4))
			if o.isDrained() {
				t.Error("blocks that can be written are free")
			}
			happen(m)
			wait(t, "drained", o.over)
		})
	}
}
