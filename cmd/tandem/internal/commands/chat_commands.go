package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/spelling"
)

const chatHelp = `/help           this list
/clear          forget the conversation, but keep the system message
/system TEXT    set the system message to TEXT; without TEXT, remove it
/retry          ask for the last answer again
/save FILE      write the conversation to FILE, as OpenAI's API takes it
/exit, /quit    leave; at a terminal exit, quit and Ctrl-D do so too
//TEXT          say /TEXT; a backslash at the end of a line continues it; """ begins and ends several lines
`

// chatCommands are those of chatHelp, for guesses.
var chatCommands = []string{"help", "clear", "system", "retry", "save", "exit", "quit"}

func (s *chatSession) obey(ctx context.Context, text string) error {
	command, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	if alone := []string{"/help", "/clear", "/retry", "/exit", "/quit"}; rest != "" && slices.Contains(alone, command) {
		return s.tell(fmt.Errorf("%s takes nothing behind it: enter it alone, or write // to say the line", command))
	}
	switch command {
	case "/help":
		fmt.Fprint(s.stats, chatHelp)
	case "/clear":
		s.confirm(s.forgotten())
		s.messages = nil
	case "/system":
		s.system = rest
		if rest == "" {
			s.confirm("the system message is removed")
		} else {
			s.confirm("the system message is set, from the next answer on")
		}
	case "/exit", "/quit":
		return errLeave
	case "/save":
		return s.tell(s.save(rest))
	case "/retry":
		n := len(s.messages)
		if n < 2 {
			return s.tell(fmt.Errorf("there is no answer to ask for again"))
		}
		asked, whole := s.messages[n-2].GetContent(), s.messages
		s.messages = s.messages[:n-2]
		err := s.say(ctx, asked)
		if len(s.messages) == n-2 { // the old answer is better than none
			s.messages = whole
		}
		return err
	default:
		problem := fmt.Sprintf("there is no command %s", command)
		if nearest, near := spelling.Nearest(command[1:], slices.Values(chatCommands)); near {
			problem += fmt.Sprintf(", did you mean /%s?", nearest)
		}
		return s.tell(errors.New(then(problem, "see /help, or write // to say it")))
	}
	return nil
}

// confirm says that a command was obeyed.
func (s *chatSession) confirm(what string) { fmt.Fprintf(s.stats, "[%s]\n", what) }

// forgotten is what there is to say of a conversation that is forgotten.
func (s *chatSession) forgotten() string {
	what := "the conversation is forgotten"
	if len(s.messages) == 0 {
		what = "there is no conversation to forget"
	}
	if s.system != "" {
		what += "; the system message stays"
	}
	return what
}

// tell says an error to somebody who types, and ends anything else.
func (s *chatSession) tell(err error) error {
	if err == nil || !s.terminal {
		return err
	}
	fail(s.stats, s.flags.cmd, err)
	return nil
}

// save writes the conversation to a file that is not there yet.
func (s *chatSession) save(path string) error {
	if path == "" {
		return fmt.Errorf("/save needs the name of a file")
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	saved := struct {
		Messages []message `json:"messages"`
	}{[]message{}}
	if s.system != "" {
		saved.Messages = append(saved.Messages, message{"system", s.system})
	}
	for _, m := range s.messages {
		saved.Messages = append(saved.Messages, message{m.GetRole(), m.GetContent()})
	}
	data, err := json.MarshalIndent(saved, "", "  ")
	if err != nil {
		return fmt.Errorf("save the conversation: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("save the conversation: %w: choose another name", err)
	}
	_, err = file.Write(append(data, '\n'))
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("save the conversation: %w", err)
	}
	s.confirm(fmt.Sprintf("%s saved to %s", counted(len(saved.Messages), "message"), path))
	return nil
}

// rateTokens is how long an answer must be to say a rate: tokens that arrive together
// make the rate of a few mean nothing.
const rateTokens = 20

// cost says what an answer cost that was to have bound tokens at most; 0: as many as
// the context holds.
func (s *chatSession) cost(r resultJSON, bound uint32) {
	t := r.TimingMs
	ms := func(value float64) string {
		d := time.Duration(value * float64(time.Millisecond))
		if d >= 100*time.Millisecond {
			return d.Round(time.Millisecond).String()
		}
		return d.Round(10 * time.Microsecond).String()
	}
	var out strings.Builder
	fmt.Fprintf(&out, "[first token %s: tokenize %s, queue %s, decide %s, reserve %s, prefill %s", ms(t.Ttft), ms(t.Tokenize), ms(t.Queue), ms(t.Decide), ms(t.Reserve), ms(t.Prefill))
	if t.SecondToken > 0 {
		fmt.Fprintf(&out, "; second %s later", ms(t.SecondToken))
		if r.Route.Mode == "disaggregated" {
			fmt.Fprintf(&out, ", transfer exposed %s", ms(t.TransferExposed))
		}
	}
	if t.Tpot > 0 && r.Usage.CompletionTokens >= rateTokens {
		format := "; %.0f tokens/s"
		if t.Tpot > 100 {
			format = "; %.1f tokens/s"
		}
		fmt.Fprintf(&out, format, 1000/t.Tpot)
	}
	fmt.Fprintf(&out, "; prompt %d tokens, %d cached; answer %d", r.Usage.PromptTokens, r.Usage.CachedTokens, r.Usage.CompletionTokens)
	switch {
	case r.FinishReason == "length" && r.Usage.CompletionTokens == bound && s.bound != nil:
		out.WriteString(", cut there by the default limit of chat (--max-tokens sets another)")
	case r.FinishReason == "length" && r.Usage.CompletionTokens == bound:
		out.WriteString(", cut there by --max-tokens")
	case r.FinishReason == "length":
		out.WriteString(", cut there by the end of the context")
	}
	fmt.Fprintf(&out, "; %s on %s]", r.Route.Mode, r.Route.workers())
	line := out.String()
	if s.dim {
		line = "\x1b[2m" + line + "\x1b[0m"
	}
	fmt.Fprintln(s.stats, line)
}
