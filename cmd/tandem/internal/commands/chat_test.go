package commands_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// talker answers each turn with its number, and keeps what it was asked.
type talker struct {
	mu    sync.Mutex
	asked []*inferencev1.GenerateRequest
	fails func(turn int) error
}

func (k *talker) generate(r *inferencev1.GenerateRequest, s stream) error {
	k.mu.Lock()
	k.asked = append(k.asked, r)
	n := len(k.asked)
	k.mu.Unlock()
	if k.fails != nil {
		if err := k.fails(n); err != nil {
			return err
		}
	}
	return sends(accepted(), tokens(0, "answer", 7), tokens(1, " ", 8), finished(2, string(rune('0'+n))))(r, s)
}

// said is the conversation of a request, one "role: content" for each message.
func (k *talker) said(turn int) string {
	var out []string
	for _, m := range k.asked[turn].GetConversation().GetMessages() {
		out = append(out, m.GetRole()+": "+m.GetContent())
	}
	return strings.Join(out, " | ")
}

func chatWith(t *testing.T, k *talker, stdin string, args ...string) outcome {
	t.Helper()
	router := &fakeRouter{generate: k.generate}
	return run(t.Context(), stdin, nil, append([]string{"chat", "--addr", router.start(t)}, args...)...)
}

const goldenCost = "[first token 15ms: tokenize 1ms, queue 2ms, decide 3ms, reserve 4ms, prefill 5ms; second 8ms later, transfer exposed 6ms; " +
	"prompt 5 tokens, 2 cached; answer 2, cut there by the end of the context; disaggregated on p to d]\n"

func TestChat(t *testing.T) {
	k := new(talker)
	got := chatWith(t, k, "Hello\n\nand you?\n", "--system", "Be brief.")
	if got.status != 0 || got.stdout != "answer 1\nanswer 2\n" || got.stderr != goldenCost+goldenCost {
		t.Errorf("got %+v", got)
	}
	if got, want := k.said(1), "system: Be brief. | user: Hello | assistant: answer 1 | user: and you?"; got != want {
		t.Errorf("the second turn said %q, want %q", got, want)
	}
}

// A few tokens, which may arrive together, have no rate.
func TestChatSaysARateOfLongAnswers(t *testing.T) {
	for n, want := range map[uint64]bool{19: false, 20: true} {
		router := &fakeRouter{generate: sends(accepted(), tokens(0, "answer", make([]uint32, n)...), finished(n, "1"))}
		got := run(t.Context(), "a\n", nil, "chat", "--addr", router.start(t))
		if got.status != 0 || strings.Contains(got.stderr, "; 286 tokens/s; ") != want {
			t.Errorf("%d tokens: got %+v", n, got)
		}
	}
}

func TestStyles(t *testing.T) {
	for variable, want := range map[string]bool{"TERM=xterm": true, "TERM=dumb": false, "NO_COLOR=1": false, "NO_COLOR=": true} {
		if got := commands.Styles([]string{"HOME=/", variable}); got != want {
			t.Errorf("with %s: %t", variable, got)
		}
	}
}

func TestChatRequest(t *testing.T) {
	k := new(talker)
	got := chatWith(t, k, "x", "--no-stats", "--max-tokens=9", "--temperature=0.5", "--seed=3", "--stop=END", "--mode=aggregated", "--model=fable",
		"--tenant=t", "--template-argument=enable_thinking=false", "--template-argument=tone=dry wit")
	if got != (outcome{0, "answer 1\n", ""}) {
		t.Fatalf("got %+v", got)
	}
	arguments := k.asked[0].GetConversation().GetTemplateArguments().AsMap()
	if diff := cmp.Diff(map[string]any{"enable_thinking": false, "tone": "dry wit"}, arguments); diff != "" {
		t.Error(diff)
	}
	k.asked[0].Input = nil
	want := &inferencev1.GenerateRequest{
		Model: "fable", MaxTokens: proto.Uint32(9), Stop: []string{"END"}, Mode: inferencev1.Mode_MODE_AGGREGATED, Tenant: "t",
		Sampling: &inferencev1.Sampling{Temperature: proto.Float32(0.5), Seed: proto.Uint64(3)},
	}
	if diff := cmp.Diff(want, k.asked[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Answers end also where the model does not end them. With less of the context left
// than that, they have what is left.
func TestChatBoundsAnswers(t *testing.T) {
	full := rpc.ContextLength("max_tokens", "the context holds 4096 tokens")
	for name, c := range map[string]struct {
		args  []string
		fails func(turn int) error
		want  []uint32 // max_tokens of the requests; 0: none
	}{
		"an eighth of the context": {nil, nil, []uint32{512}},
		"what is left":             {nil, func(turn int) error { return map[int]error{1: full}[turn] }, []uint32{512, 0}},
		"as many as are asked for": {[]string{"--max-tokens=600"}, nil, []uint32{600}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &talker{fails: c.fails}
			if got := chatWith(t, k, "a\n", append(c.args, "--no-stats")...); got.status != 0 || got.stderr != "" {
				t.Fatalf("got %+v", got)
			}
			var asked []uint32
			for _, r := range k.asked {
				asked = append(asked, r.GetMaxTokens())
			}
			if diff := cmp.Diff(c.want, asked); diff != "" {
				t.Error(diff)
			}
		})
	}
	k := &talker{fails: func(int) error { return full }}
	checkFailure(t, chatWith(t, k, "a\n", "--max-tokens=600"), 1, "the context holds 4096 tokens")
	if len(k.asked) != 1 {
		t.Errorf("asked %d times", len(k.asked))
	}
}

func TestChatSaysWhatCutAnAnswer(t *testing.T) {
	k := new(talker)
	addr := (&fakeRouter{generate: k.generate, contextTokens: 16}).start(t)
	for want, args := range map[string][]string{
		"; answer 2, cut there by the default limit of chat (--max-tokens sets another); ": nil,
		"; answer 2, cut there by --max-tokens; ":                                          {"--max-tokens=2"},
		"; answer 2, cut there by the end of the context; ":                                {"--max-tokens=3"},
	} {
		got := run(t.Context(), "a\n", nil, append([]string{"chat", "--addr", addr}, args...)...)
		if got.status != 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: got %+v, want %q", args, got, want)
		}
	}
}

func TestChatJSON(t *testing.T) {
	k := new(talker)
	got := chatWith(t, k, "a\nb\n", "--json", "--no-stats")
	if got.status != 0 || got.stderr != "" || strings.Count(got.stdout, "\n") != 2 {
		t.Fatalf("got %+v", got)
	}
	for i, text := range strings.Split(strings.TrimSpace(got.stdout), "\n") {
		var result map[string]any
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			t.Fatal(err)
		}
		for key := range last(t, goldenResult) {
			if _, ok := result[key]; !ok {
				t.Errorf("the result lacks %q", key)
			}
		}
		if want := "answer " + string(rune('1'+i)); result["text"] != want {
			t.Errorf("text %q, want %q", result["text"], want)
		}
	}
}

func TestChatLines(t *testing.T) {
	for name, c := range map[string]struct{ stdin, want string }{
		"a backslash goes on":      {"one\\\ntwo\\\nthree\n", "user: one\ntwo\nthree"},
		"a block":                  {"\"\"\"\none\n\ntwo\"\"\"\n", "user: one\n\ntwo"},
		"a block in one line":      {"\"\"\"one\"\"\"\n", "user: one"},
		"two slashes":              {"//etc\n", "user: /etc"},
		"no line break at the end": {"one", "user: one"},
		"carriage returns":         {"one\r\n", "user: one"},
		"a backslash at the end":   {"one\\", "user: one"},
		"one behind a line":        {"one\\\ntwo \\\n", "user: one\ntwo "},
	} {
		t.Run(name, func(t *testing.T) {
			k := new(talker)
			if got := chatWith(t, k, c.stdin, "--no-stats"); got != (outcome{0, "answer 1\n", ""}) {
				t.Fatalf("got %+v", got)
			}
			if got := k.said(0); got != c.want {
				t.Errorf("said %q, want %q", got, c.want)
			}
		})
	}
}

func TestChatCommands(t *testing.T) {
	k := new(talker)
	file := filepath.Join(t.TempDir(), "saved.json")
	got := chatWith(t, k, "/help\na\nb\n/retry\n/save "+file+"\n/clear\nc\n/exit\nnever\n", "--system=S", "--no-stats")
	if got.status != 0 || got.stdout != "answer 1\nanswer 2\nanswer 3\nanswer 4\n" || !strings.Contains(got.stderr, "/clear ") {
		t.Fatalf("got %+v", got)
	}
	for i, want := range []string{
		"system: S | user: a", "system: S | user: a | assistant: answer 1 | user: b",
		"system: S | user: a | assistant: answer 1 | user: b", "system: S | user: c",
	} {
		if got := k.said(i); got != want {
			t.Errorf("turn %d said %q, want %q", i, got, want)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var saved struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(data, &saved); err != nil || len(saved.Messages) != 5 || saved.Messages[4].Content != "answer 3" {
		t.Errorf("saved %s: %v", data, err)
	}
}

// A command says in a line what it did.
func TestChatCommandsConfirm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved.json")
	for name, c := range map[string]struct {
		stdin, said, asked string // said on standard error; asked last
	}{
		"a system":             {"/system Be kind.\none\n", "[the system message is set, from the next answer on]\n", "system: Be kind. | user: one"},
		"no system":            {"/system\none\n", "[the system message is removed]\n", "user: one"},
		"clear":                {"a\n/clear\none\n", "[the conversation is forgotten]\n", "user: one"},
		"clear with a system":  {"/system S\na\n/clear\none\n", "[the system message is set, from the next answer on]\n[the conversation is forgotten; the system message stays]\n", "system: S | user: one"},
		"clear before a start": {"/clear\none\n", "[there is no conversation to forget]\n", "user: one"},
		"save":                 {"one\n/save " + file + "\n", "[2 messages saved to " + file + "]\n", "user: one"},
	} {
		t.Run(name, func(t *testing.T) {
			k := new(talker)
			if got := chatWith(t, k, c.stdin, "--no-stats"); got.status != 0 || got.stderr != c.said {
				t.Errorf("got %+v, want %q", got, c.said)
			}
			if got := k.said(len(k.asked) - 1); got != c.asked {
				t.Errorf("said %q, want %q", got, c.asked)
			}
		})
	}
}

func TestChatEndsBadly(t *testing.T) {
	full := func(int) error {
		return rpc.ContextLength("conversation", "This model's maximum context length is 2048 tokens: the prompt does not fit; shorten it")
	}
	second := func(fails func(int) error) func(int) error {
		return func(turn int) error {
			if turn < 2 {
				return nil
			}
			return fails(turn)
		}
	}
	for name, c := range map[string]struct {
		stdin, want string
		args        []string
		fails       func(int) error
		status      int
	}{
		"the context is full":  {"a\nb\n", "the prompt does not fit; /clear begins a new conversation", []string{"--no-stats"}, second(full), 1},
		"a line is too long":   {"a\n", "the prompt does not fit; shorten it\n", nil, full, 1},
		"too many tokens":      {"", "--max-tokens: 4096 do not fit: the context of fake holds 4096 tokens, the prompt included; pass at most 4095", []string{"--max-tokens=4096"}, nil, 2},
		"no template":          {"a\n", "fable cannot chat", nil, func(int) error { return rpc.InvalidArgument("conversation", "fable cannot chat") }, 1},
		"an unknown command":   {"/frob\n", "there is no command /frob: see /help", nil, nil, 1},
		"a misspelt command":   {"/hlep\n", "there is no command /hlep, did you mean /help? See /help, or write // to say it", nil, nil, 1},
		"nothing to retry":     {"/retry\n", "no answer", nil, nil, 1},
		"retry something":      {"a\n/retry x\n", "/retry takes nothing behind it: enter it alone", []string{"--no-stats"}, nil, 1},
		"exit at some time":    {"/exit now\n", "/exit takes nothing behind it", nil, nil, 1},
		"quit at some time":    {"/quit now\n", "/quit takes nothing behind it", nil, nil, 1},
		"clear something":      {"/clear x\n", "/clear takes nothing behind it", nil, nil, 1},
		"help with something":  {"/help x\n", "/help takes nothing behind it", nil, nil, 1},
		"save where":           {"/save\n", "needs the name of a file", nil, nil, 1},
		"save over a file":     {"/save /dev/null\n", "choose another name", nil, nil, 1},
		"mode":                 {"a\n", "--mode: \"both\" is not a mode", []string{"--mode=both"}, nil, 2},
		"max tokens":           {"a\n", "--max-tokens: 0", []string{"--max-tokens=0"}, nil, 2},
		"a template argument":  {"a\n", "pass NAME=VALUE", []string{"--template-argument=x"}, nil, 2},
		"no end of a block":    {"\"\"\"\none\ntwo\n", `end it with """`, nil, nil, 1},
		"not UTF-8":            {"a\xff\n", `"a\xff" is not UTF-8: convert it first, for instance with iconv`, nil, nil, 1},
		"a command not UTF-8":  {"/system a\xff\n", "is not UTF-8", nil, nil, 1},
		"a line without bound": {strings.Repeat("x", 17<<20), "standard input", nil, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			k := &talker{fails: c.fails}
			checkFailure(t, chatWith(t, k, c.stdin, c.args...), c.status, c.want)
		})
	}
	got := run(t.Context(), "a\n", []string{"TANDEM_ADDR=127.0.0.1:1"}, "chat")
	checkFailure(t, got, 1, "cannot reach the router at 127.0.0.1:1")
}

// Ctrl-C stops an answer and keeps what came; between answers it leaves.
func TestChatInterrupted(t *testing.T) {
	var asked []*inferencev1.GenerateRequest
	router := &fakeRouter{generate: func(r *inferencev1.GenerateRequest, s stream) error {
		asked = append(asked, r)
		if len(asked) == 2 {
			return s.Send(finished(0, "done"))
		}
		if err := sends(accepted(), tokens(0, "half", 7))(r, s); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}
	addr := router.start(t)
	stdin, typist := io.Pipe()
	interrupts := make(chan os.Signal)
	out, help := &signalWriter{seen: make(chan struct{})}, &signalWriter{seen: make(chan struct{})}
	status := make(chan int, 1)
	go func() {
		status <- commands.Run(t.Context(), commands.Process{
			Args: []string{"chat", "--no-stats", "--addr", addr}, Stdin: stdin, Stdout: out, Stderr: help, Interrupts: interrupts,
		})
	}()
	say := func(text string) {
		if _, err := io.WriteString(typist, text); err != nil {
			t.Error(err)
		}
	}
	say("first\n")
	<-out.seen
	interrupts <- os.Interrupt // stops the answer
	say("second\n")
	say("/help\n")
	<-help.seen // so the second answer is there
	interrupts <- os.Interrupt
	if got := <-status; got != 0 {
		t.Errorf("exit status %d", got)
	}
	_ = typist.Close()
	k := &talker{asked: asked}
	if got, want := k.said(1), "user: first | assistant: half | user: second"; got != want || out.text.String() != "half\ndone\n" {
		t.Errorf("said %q, want %q; printed %q", got, want, out.text.String())
	}
}

// A Ctrl-C that comes as an answer ends was meant for the answer.
func TestChatLateInterrupt(t *testing.T) {
	k := new(talker)
	router := &fakeRouter{generate: k.generate}
	interrupts := make(chan os.Signal, 1)
	late := writerFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "[first token") {
			interrupts <- os.Interrupt
		}
		return len(p), nil
	})
	var out strings.Builder
	status := commands.Run(t.Context(), commands.Process{
		Args: []string{"chat", "--addr", router.start(t)}, Stdin: strings.NewReader("one\ntwo\n"), Stdout: &out, Stderr: late, Interrupts: interrupts,
	})
	if status != 0 || out.String() != "answer 1\nanswer 2\n" {
		t.Errorf("exit status %d, printed %q", status, out.String())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TANDEM_MODEL is a directory, as containers set it, and not what is asked for.
func TestModelOfTheEnvironment(t *testing.T) {
	k := new(talker)
	router := &fakeRouter{generate: k.generate}
	addr := router.start(t)
	for _, args := range [][]string{{"chat"}, {"generate", "--prompt=x"}} {
		got := run(t.Context(), "one\n", []string{"TANDEM_MODEL=/models/fable"}, append(args, "--addr", addr)...)
		if model := k.asked[len(k.asked)-1].GetModel(); got.status != 0 || model != "" {
			t.Errorf("%s: asked for %q: %+v", args[0], model, got)
		}
	}
}

// Where nobody types, the end of the process' context ends the command.
func TestChatCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	stdin, typist := io.Pipe()
	defer typist.Close()
	cancel()
	var stderr strings.Builder
	status := commands.Run(ctx, commands.Process{Args: []string{"chat"}, Stdin: stdin, Stdout: io.Discard, Stderr: &stderr})
	checkFailure(t, outcome{status, "", stderr.String()}, 130, "cancelled")
}
