package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/tempfolder"
)

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
	s, err := newSink(memory.Layout(), memory, p.Transport, dir.Path, p.Lease)
	if err != nil {
		return err
	}
	defer s.close()
	a, err := s.reserve(blockRange(0, p.blocks()))
	if err != nil {
		return err
	}
	ticket, err := writeTicket(a.ticket)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, ticket); err != nil {
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
		return fmt.Errorf("this command is for 'tandem bench transfer', which gives it a ticket: %w", err)
	}
	phase, text, _ := strings.Cut(line, " ")
	ticket, err := readTicket(text)
	if err != nil {
		return err
	}
	sender, err := newSource(memory.Layout(), memory, p.Connections)
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

// writeTicket is a ticket as one line.
func writeTicket(ticket *kvtransferv1.Ticket) (string, error) {
	text, err := protojson.Marshal(ticket)
	return strings.ReplaceAll(string(text), "\n", ""), err
}

func readTicket(line string) (*kvtransferv1.Ticket, error) {
	ticket := new(kvtransferv1.Ticket)
	if err := protojson.Unmarshal([]byte(line), ticket); err != nil {
		return nil, fmt.Errorf("read the ticket: %w", err)
	}
	return ticket, nil
}
