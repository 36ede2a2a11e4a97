package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Kill is one side killed (SIGKILL) in one phase.
type Kill struct {
	// Side is who was killed: "sender" or "receiver".
	Side string `json:"side"`
	// Phase is when: one of the Phase constants.
	Phase string `json:"phase"`
	// FreeS is how long until the other side had its blocks back, seconds: until
	// nothing could be written into the receiver's, until nothing was read from the
	// sender's.
	FreeS float64 `json:"free_s"`
}

// Phases in which a side is killed.
const (
	// PhaseReserved: blocks are reserved, their sender is dead before it connects. In
	// a mesh the router, who had sent it, sees that and cancels.
	PhaseReserved = "reserved"
	// PhaseAccepted: nothing was sent yet.
	PhaseAccepted = "accepted"
	// PhaseSending: half of the layers were offered, and some of that was sent.
	PhaseSending = "sending"
	// PhaseSent: everything was offered, but no commit.
	PhaseSent = "sent"
)

// Child says how the other side is started in a process of its own: the arguments end
// in a call of ServeChild, with standard input and output.
type Child struct {
	// Binary is the program; empty: FigureKill cannot be measured.
	Binary    string
	Arguments func(p Plan, side string) []string
}

// Sides that a child can be.
const (
	SideSender   = "sender"
	SideReceiver = "receiver"
)

func (b *Bench) kills(ctx context.Context, r *Result) error {
	if b.child.Binary == "" {
		return fmt.Errorf("kill: no program to start and kill is given")
	}
	free, err := b.unopened(ctx)
	if err != nil {
		return err
	}
	r.Kills = []Kill{{SideSender, PhaseReserved, free.Seconds()}}
	for _, side := range []struct {
		name string
		kill func(context.Context, string) (time.Duration, error)
	}{{SideSender, b.killSender}, {SideReceiver, b.killReceiver}} {
		for _, phase := range []string{PhaseAccepted, PhaseSending, PhaseSent} {
			free, err := side.kill(ctx, phase)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", side.name, phase, err)
			}
			r.Kills = append(r.Kills, Kill{side.name, phase, free.Seconds()})
			r.KillSMax = max(r.KillSMax, free.Seconds())
		}
	}
	b.said("both sides were killed in every phase")
	return nil
}

// unopened is how long blocks are held for a sender that never comes.
func (b *Bench) unopened(ctx context.Context) (time.Duration, error) {
	s, err := newSink(b.layout, b.to, b.plan.Transport, b.dir, b.plan.Lease, nil)
	if err != nil {
		return 0, err
	}
	defer s.close()
	began := time.Now()
	a, err := s.reserve(kvcache.BlockRange(0, b.plan.blocks()))
	if err != nil {
		return 0, err
	}
	b.said(fmt.Sprintf("waiting for a lease of %v to end", a.ticket.GetLease().AsDuration()))
	if err := until(ctx, a.over); err != nil {
		return 0, err
	}
	return a.at.Sub(began), nil
}

func (b *Bench) killSender(ctx context.Context, phase string) (time.Duration, error) {
	s, err := newSink(b.layout, b.to, b.plan.Transport, b.dir, b.plan.Lease, nil)
	if err != nil {
		return 0, err
	}
	defer s.close()
	c, err := b.startChild(ctx, SideSender)
	if err != nil {
		return 0, err
	}
	defer c.kill()
	if _, err := c.hear(); err != nil { // it runs: the lease does not pay for its start
		return 0, err
	}
	a, err := s.reserve(kvcache.BlockRange(0, b.plan.blocks()))
	if err != nil {
		return 0, err
	}
	ticket, err := protojson.Marshal(a.ticket) // one line
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(c.in, "%s %s\n", phase, ticket); err != nil {
		return 0, err
	}
	if _, err := c.hear(); err != nil {
		return 0, err
	}
	killed := c.kill()
	if err := until(ctx, a.over); err != nil {
		return 0, err
	}
	if a.err == nil {
		return 0, fmt.Errorf("the transfer of a sender that was killed was committed")
	}
	return a.at.Sub(killed), nil
}

func (b *Bench) killReceiver(ctx context.Context, phase string) (time.Duration, error) {
	c, err := b.startChild(ctx, SideReceiver)
	if err != nil {
		return 0, err
	}
	defer c.kill()
	line, err := c.hear()
	if err != nil {
		return 0, err
	}
	ticket, err := readTicket(line)
	if err != nil {
		return 0, err
	}
	sender, err := newSource(b.layout, b.from, b.plan.Transport, b.plan.Connections, nil)
	if err != nil {
		return 0, err
	}
	defer closeSource(sender)
	t, err := sendUntil(ctx, sender, ticket, b.layout.Layers, phase)
	if err != nil {
		return 0, err
	}
	killed := c.kill()
	if err := until(ctx, t.Done()); err != nil {
		return 0, err
	}
	free := time.Since(killed)
	if t.Err() == nil {
		return 0, fmt.Errorf("a receiver that was killed has committed")
	}
	return free, nil
}

// sendUntil opens a transfer and brings it into a phase.
func sendUntil(ctx context.Context, sender *kvtransfer.Sender, ticket *kvtransferv1.Ticket, layers int, phase string) (*kvtransfer.Transfer, error) {
	t, err := sender.Open(ctx, ticket, "bench")
	if err != nil {
		return nil, err
	}
	offered := map[string]int{PhaseAccepted: 0, PhaseSending: (layers + 1) / 2, PhaseSent: layers}[phase]
	for layer := range offered {
		t.Send(layer, 0, kvcache.BlockRange(0, int(ticket.GetBlocks())))
	}
	for offered > 0 && t.Stats().Chunks == 0 {
		if err := waitUntil(ctx, time.Now().Add(100*time.Microsecond)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	said  bytes.Buffer
	ended bool
}

func (b *Bench) startChild(ctx context.Context, side string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, b.child.Binary, b.child.Arguments(b.plan, side)...)}
	c.cmd.Stderr = &c.said
	// What a child that is killed leaves behind goes with this bench's folder.
	c.cmd.Env = append(os.Environ(), "TMPDIR="+b.dir)
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", side, err)
	}
	return c, nil
}

func (c *child) hear() (string, error) {
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.kill()
		return "", fmt.Errorf("the other side ended: %w: %s", err, strings.TrimSpace(c.said.String()))
	}
	return line, nil
}

// kill kills the child, waits for its end, and says when it was killed. A second call
// does nothing.
func (c *child) kill() time.Time {
	at := time.Now()
	if !c.ended {
		c.ended = true
		_ = c.cmd.Process.Kill() // gone already: as wanted
		_ = c.cmd.Wait()         // it was killed: that is no news
	}
	return at
}

// ServeChild is one side of a transfer in a process of its own, for FigureKill. A
// receiver reserves blocks and writes the ticket as one line. A sender writes a line
// once it runs, reads a phase and a ticket as one line, brings its transfer there, and
// writes the phase. Both then wait until they are killed, or until in ends.
func ServeChild(ctx context.Context, p Plan, side string, in io.Reader, out io.Writer) (err error) {
	if err := p.Validate(); err != nil {
		return err
	}
	layout, err := p.Layout()
	if err != nil {
		return err
	}
	memory, err := newPages(layout, p.blocks(), 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	lines := bufio.NewReader(in)
	switch side {
	case SideReceiver:
		return p.serveReceiver(memory, lines, out)
	case SideSender:
		return p.serveSender(ctx, memory, lines, out)
	}
	return fmt.Errorf("no side of a transfer is called %q", side)
}

func (p Plan) serveReceiver(memory *hostpages.Pages, in io.Reader, out io.Writer) error {
	dir, err := tempfolder.Make("bench")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Remove() }()
	s, err := newSink(memory.Layout(), memory, p.Transport, dir.Path, p.Lease, nil)
	if err != nil {
		return err
	}
	defer s.close()
	a, err := s.reserve(kvcache.BlockRange(0, p.blocks()))
	if err != nil {
		return err
	}
	ticket, err := protojson.Marshal(a.ticket) // one line
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\n", ticket); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

func (p Plan) serveSender(ctx context.Context, memory *hostpages.Pages, in *bufio.Reader, out io.Writer) error {
	if _, err := fmt.Fprintln(out, SideSender); err != nil {
		return err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("only 'tandem bench transfer' runs this command, and gives it a ticket: %w", err)
	}
	phase, text, _ := strings.Cut(line, " ")
	ticket, err := readTicket(text)
	if err != nil {
		return err
	}
	sender, err := newSource(memory.Layout(), memory, p.Transport, p.Connections, nil)
	if err != nil {
		return err
	}
	defer closeSource(sender)
	if _, err := sendUntil(ctx, sender, ticket, memory.Layout().Layers, phase); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, phase); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

func readTicket(line string) (*kvtransferv1.Ticket, error) {
	ticket := new(kvtransferv1.Ticket)
	if err := protojson.Unmarshal([]byte(line), ticket); err != nil {
		return nil, fmt.Errorf("read the ticket: %w", err)
	}
	return ticket, nil
}
