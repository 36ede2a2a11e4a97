package commands

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/client"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

type chatSession struct {
	flags      *chatFlags
	base       *inferencev1.GenerateRequest
	routers    *client.Client
	input      input
	interrupts <-chan os.Signal
	terminal   bool    // somebody types
	bound      *uint32 // tokens of an answer, unless --max-tokens says it
	out, stats io.Writer
	dim        bool
	system     string
	messages   []*inferencev1.Message // without the system's
}

var (
	errLeave       = errors.New("leave")
	errInterrupted = errors.New("interrupted")
)

func runChat(cmd *cobra.Command, flags *chatFlags) error {
	base, err := flags.request(cmd)
	if err != nil {
		return flags.failure(err, false)
	}
	as, err := flags.open(cmd)
	if err != nil {
		return err
	}
	routers, err := dialRouters(flags.addr, as)
	if err != nil {
		return usageError(cmd, "--addr: "+err.Error())
	}
	defer func() { _ = routers.Close() }() // of connections that nobody waits for
	s := &chatSession{
		flags: flags, base: base, routers: routers, system: flags.system, terminal: isTerminal(cmd.InOrStdin()),
		out: cmd.OutOrStdout(), stats: cmd.ErrOrStderr(), dim: isTerminal(cmd.ErrOrStderr()) && styles(processOf(cmd.Context()).Environ),
	}
	ctx := cmd.Context()
	model, err := s.meet(ctx)
	if err != nil {
		return flags.failure(err, false)
	}
	if s.terminal || processOf(ctx).Interrupts != nil {
		var stop func()
		ctx, s.interrupts, stop = interruptsOf(ctx)
		defer stop()
	}
	s.open(cmd)
	defer s.input.stop()
	if s.terminal {
		fmt.Fprintf(s.stats, "Say something to %s; /help lists commands, Ctrl-D leaves.\n", model)
	}
	for warned := false; ; warned = false {
		text, err := s.listen(ctx)
		for s.terminal && !warned && errors.Is(err, errInterrupted) {
			// It may have been meant for an answer that ended just before.
			warned = true
			fmt.Fprintln(s.stats, "\nCtrl-C once more leaves, as Ctrl-D and exit do.")
			text, err = s.listen(ctx)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errInterrupted):
			if s.terminal {
				fmt.Fprintln(s.stats)
			}
			return nil
		case err != nil:
			return err
		}
		if err := s.take(ctx, text); errors.Is(err, errLeave) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// meet asks the router for its model, so that a router that is not there is said
// before anything is typed, and a --max-tokens that no prompt fits beside; it bounds
// answers where --max-tokens does not: some models, such as the bundled one, hardly ever end a text.
func (s *chatSession) meet(ctx context.Context) (model string, _ error) {
	const toAnswer, atMost, share = 10 * time.Second, 2048, 8
	ctx, cancel := context.WithTimeout(ctx, toAnswer)
	defer cancel()
	served, err := s.routers.ListModels(ctx)
	if err != nil {
		return "", err
	}
	model = cmp.Or(s.base.GetModel(), "the model")
	for _, m := range served.GetModels() {
		if s.base.GetModel() == "" || s.base.GetModel() == m.GetName() {
			model = m.GetName()
			if s.base.MaxTokens == nil {
				s.bound = new(min(max(m.GetContextTokens()/share, 1), atMost))
			} else if most := m.GetContextTokens() - 1; s.base.GetMaxTokens() > most {
				return "", rpc.InvalidArgument("max_tokens", fmt.Sprintf(
					"%d do not fit: the context of %s holds %d tokens, the prompt included; pass at most %d", s.base.GetMaxTokens(), model, most+1, most))
			}
			break
		}
	}
	return model, nil
}

// open begins to read what is said.
func (s *chatSession) open(cmd *cobra.Command) {
	if e := newEditor(cmd.InOrStdin(), s.stats, processOf(cmd.Context()).Environ); e != nil {
		s.input = e
		return
	}
	prompts := io.Discard
	if s.terminal {
		prompts = s.stats
	}
	s.input = readLines(cmd.InOrStdin(), prompts)
}

func (s *chatSession) listen(ctx context.Context) (string, error) {
	first, err := s.line(ctx, "> ")
	if err != nil {
		return "", err
	}
	text, err := turn(first, func() (string, error) { return s.line(ctx, "… ") })
	if errors.Is(err, errInterrupted) { // gives up this text
		return "", nil
	}
	return text, err
}

func (s *chatSession) line(ctx context.Context, prompt string) (string, error) {
	select {
	case l, more := <-s.input.next(prompt):
		if !more {
			return "", io.EOF
		}
		if l.err != nil && !errors.Is(l.err, io.EOF) && !errors.Is(l.err, errInterrupted) {
			return "", fmt.Errorf("read from standard input: %w", l.err)
		}
		return l.text, l.err
	case <-s.interrupts:
		return "", errInterrupted
	case <-ctx.Done():
		return "", routerFailure(ctx.Err(), s.flags.addr, true)
	}
}

// take is a line: a command, or something to answer.
func (s *chatSession) take(ctx context.Context, text string) error {
	if !utf8.ValidString(text) {
		return s.tell(fmt.Errorf("%.40q is not UTF-8: convert it first, for instance with iconv", text))
	}
	switch {
	case strings.TrimSpace(text) == "":
		return nil
	case s.terminal && (text == "exit" || text == "quit"): // who types that wants to leave
		return errLeave
	case strings.HasPrefix(text, "//"):
		text = text[1:]
	case strings.HasPrefix(text, "/"):
		return s.obey(ctx, text)
	}
	return s.say(ctx, text)
}

// say adds a message and its answer, if need be the part of it that came before
// somebody stopped it. Where it failed the conversation stays as it was, for a model
// would take half an answer for what it meant to say. For somebody who types an
// error is not the end.
func (s *chatSession) say(ctx context.Context, text string) error {
	before := s.messages
	s.messages = append(s.messages[:len(before):len(before)], &inferencev1.Message{Role: "user", Content: text})
	answer, err := s.answer(ctx)
	s.forgetInterrupts()
	stopped := errors.Is(err, errInterrupted)
	if err == nil || stopped && answer != "" {
		s.messages = append(s.messages, &inferencev1.Message{Role: "assistant", Content: answer})
	} else {
		s.messages = before
	}
	if err == nil || stopped {
		return nil
	}
	if !s.terminal || ctx.Err() != nil {
		return err
	}
	fail(s.stats, s.flags.cmd, err)
	if answer != "" {
		fmt.Fprintln(s.stats, "[the conversation goes on without this turn]")
	}
	return nil
}

// forgetInterrupts takes a Ctrl-C that came as an answer ended: it meant the answer.
func (s *chatSession) forgetInterrupts() {
	for {
		select {
		case <-s.interrupts:
		default:
			return
		}
	}
}

func (s *chatSession) answer(ctx context.Context) (string, error) {
	request := proto.CloneOf(s.base)
	c := request.GetConversation()
	if s.system != "" {
		c.Messages = append(c.Messages, &inferencev1.Message{Role: "system", Content: s.system})
	}
	c.Messages = append(c.Messages, s.messages...)
	request.MaxTokens = cmp.Or(request.MaxTokens, s.bound)
	out := bufio.NewWriter(s.out)
	if s.flags.json {
		out = bufio.NewWriter(io.Discard)
	}
	g := &generation{flags: &generateFlags{requestFlags: requestFlags{cmd: s.flags.cmd, addr: s.flags.addr}}, out: out}
	g.result.TokenIDs = []uint32{}
	interrupted, err := s.follow(ctx, g, request)
	if s.bound != nil && rpc.Reason(err) == api.ReasonContextLengthExceeded { // with so many tokens; fewer may fit
		request.MaxTokens = nil
		interrupted, err = s.follow(ctx, g, request)
	}
	var failed error
	if err != nil {
		failed = g.failure(err)
	}
	g.result.Text = g.text.String()
	if printErr := s.printAnswer(g); printErr != nil {
		return g.result.Text, printErr
	}
	switch {
	case interrupted && err != nil:
		if s.terminal {
			fmt.Fprintln(s.stats, "[stopped]")
		}
		return g.result.Text, errInterrupted
	case rpc.Reason(err) == api.ReasonContextLengthExceeded && len(s.messages) > 1:
		problem := strings.TrimSuffix(failed.Error(), "; shorten it") // what was said cannot be
		return g.result.Text, &exitError{status: exitFailed, message: problem + "; /clear begins a new conversation", cause: failed}
	case failed != nil:
		return g.result.Text, failed
	}
	if !s.flags.noStats {
		s.cost(g.result, request.GetMaxTokens())
	}
	return g.result.Text, nil
}

// follow handles one answer, until it ends or somebody interrupts it.
func (s *chatSession) follow(ctx context.Context, g *generation, request *inferencev1.GenerateRequest) (interrupted bool, _ error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.follow(ctx, s.routers, request) }()
	select {
	case err := <-ended:
		return false, err
	case <-s.interrupts:
		cancel()
		return true, <-ended
	}
}

func (s *chatSession) printAnswer(g *generation) error {
	var err error
	switch {
	case s.flags.json:
		lines := json.NewEncoder(s.out)
		lines.SetEscapeHTML(false)
		err = lines.Encode(g.result)
	case g.text.Len() > 0:
		_, err = fmt.Fprintln(s.out)
	}
	if err != nil {
		return rpc.Errorf(codes.Aborted, "STANDARD_OUTPUT", "write the answer: %v", err)
	}
	return nil
}
