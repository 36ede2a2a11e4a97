package commands_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, child := range cmd.Commands() {
		walk(child, visit)
	}
}

func TestEveryCommandHelps(t *testing.T) {
	// Commands without --json, and why.
	exempt := map[string]string{
		"tandem completion": "prints a script",
		"tandem help":       "prints help",
		"tandem up":         "runs until it is stopped",
		"tandem serve":      "runs until it is stopped",
		// Parts of `tandem bench client`, which reads what they write.
		"tandem bench client server": "runs until it is stopped",
		"tandem bench client load":   "writes for its parent",
		// The same of `tandem bench transfer`.
		"tandem bench transfer part": "runs until it is killed",
	}
	count := 0
	walk(commands.NewRoot(nil), func(cmd *cobra.Command) {
		count++
		path := cmd.CommandPath()
		if cmd.Short == "" || !strings.Contains(cmd.Example, "tandem") {
			t.Errorf("%s: Short is %q, Example is %q: a command needs both", path, cmd.Short, cmd.Example)
		}
		if !cmd.HasSubCommands() && exempt[path] == "" && path != "tandem config print" && cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s prints results but has no --json", path)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing of itself", path, f.Name)
			}
		})
		got := run(t.Context(), "", nil, append(strings.Fields(path)[1:], "--help")...)
		if got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "Examples:") {
			t.Errorf("%s --help: %+v", path, got)
		}
	})
	if count < 10 {
		t.Errorf("only %d commands", count)
	}
}

// What is asked for once must not come out of an environment unasked.
func TestGenerateTakesOnlyItsPlaceFromTheEnvironment(t *testing.T) {
	walk(commands.NewRoot(nil), func(cmd *cobra.Command) {
		if cmd.Name() != "generate" {
			return
		}
		var free []string
		for _, v := range settings.Values(cmd.Flags()) {
			free = append(free, v.Name)
		}
		if got := strings.Join(free, " "); got != "addr api-key ca cert key tenant timeout" {
			t.Errorf("the environment sets %q of generate", got)
		}
	})
}

func TestHelpOfACommand(t *testing.T) {
	help := run(t.Context(), "", nil, "help", "model", "synth")
	flag := run(t.Context(), "", nil, "model", "synth", "--help")
	if help != flag || help.status != 0 || !strings.Contains(help.stdout, "--preset") {
		t.Errorf("help prints %+v, --help %+v", help, flag)
	}
}

// The workers of one process share no socket, so that up takes no path of one.
func TestHelpOnSockets(t *testing.T) {
	for command, path := range map[string]bool{"up": false, "serve": true} {
		help := run(t.Context(), "", nil, command, "--help-all").stdout
		_, line, _ := strings.Cut(help, "--kv-socket ")
		line, _, _ = strings.Cut(line, "\n")
		if strings.Contains(line, "absolute path") != path || !strings.Contains(line, "auto") || !strings.Contains(line, "off") {
			t.Errorf("%s says %q", command, line)
		}
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	cases := []struct {
		args []string
		want string
	}{
		{[]string{"genrate"}, `tandem has no command "genrate", did you mean "generate"? See 'tandem --help'`},
		{[]string{"model", "inspct"}, `tandem model has no command "inspct", did you mean "inspect"? See 'tandem model --help'`},
		{[]string{"xyzzy"}, `tandem has no command "xyzzy": see`},
		{[]string{"generate", "Once upon", "a time"}, `tandem generate takes no argument "Once upon", did you mean --prompt "Once upon a time"? See 'tandem generate --help'`},
		{[]string{"generate", "--promt=x"}, `tandem generate has no flag --promt, did you mean --prompt? See 'tandem generate --help'`},
		{[]string{"generat", "--prompt", "x"}, `tandem has no command "generat", did you mean "generate"? See 'tandem --help'`},
		{[]string{"model", "inspct", "--josn"}, `tandem model has no command "inspct", did you mean "inspect"? See`},
		{[]string{"policy", "--josn"}, `tandem policy has no flag --josn, did you mean --json? See`},
		{[]string{"up", "--decoed=3"}, `tandem up has no flag --decoed, did you mean --decode? See 'tandem up --help'`},
		{[]string{"up", "--xyzzy"}, `tandem up has no flag --xyzzy: see`},
		{[]string{"up", "-x"}, `tandem up has no flag -x: see`},
		{[]string{"--xyzzy"}, `tandem has no flag --xyzzy: see 'tandem --help'`},
		{[]string{"generate", "--max-tokens=many"}, `see 'tandem generate --help'`},
		{[]string{"generate", "--seed=-1"}, `--seed: "-1" is not a whole number from 0: see`},
		{[]string{"generate", "--max-tokens=99999999999999999999"}, `--max-tokens: "99999999999999999999" is too far from 0: see`},
		{[]string{"generate", "--top-p=much"}, `--top-p: "much" is not a number: see`},
		{[]string{"generate", "--timeout=5"}, `--timeout: "5" is not a duration: write 500ms, 10s or 2m: see`},
		{[]string{"up", "--kv-memory=much"}, `--kv-memory: "much" is not a size: write 512MiB`},
		{[]string{"up", "--decode=0"}, `--decode: 0 is outside 1 to 256: see 'tandem up --help'`},
		{[]string{"up", "--kv-transport=pigeon"}, `--kv-transport: "pigeon" is none of auto, tcp, unix and shm: see`},
		{[]string{"up", "--kv-connections=9"}, `--kv-connections: 9 is outside 1 to 8: see`},
		{[]string{"up", "--kv-socket=/run/kv.sock"}, `--kv-socket: give auto or off`},
		{[]string{"up", "--kv-socket=off", "--kv-transport=unix"}, `--kv-socket: off contradicts --kv-transport=unix`},
		{[]string{"up", "--store-max-puts=-1"}, `--store-max-puts`},
		{[]string{"serve"}, `no part to run is given: pass --target with router, prefill, decode or kvtransfer`},
		{[]string{"serve", "--target="}, `'tandem up' runs a whole mesh: see 'tandem serve --help'`},
		{[]string{"serve", "router"}, `tandem serve takes the part to run as a flag, did you mean --target=router? See 'tandem serve --help'`},
		{[]string{"serve", "cook"}, `tandem serve takes no argument "cook": see`},
		{[]string{"etcd-auth", "--etcd="}, `--etcd: name at least one address: see 'tandem etcd-auth --help'`},
		{[]string{"start"}, `tandem has no command "start", did you mean "up"? See 'tandem --help'`},
		{[]string{"run", "--prefill=2"}, `tandem has no command "run", did you mean "up"? See 'tandem --help'`},
		{[]string{"router"}, `did you mean "serve --target=router"?`},
		{[]string{"list"}, `did you mean "workers"?`},
		{[]string{"down"}, `tandem has no command "down": press Ctrl-C where`},
		{[]string{"-V"}, `tandem has no flag -V, did you mean --version?`},
		{[]string{"up", "--port=80"}, `tandem up has no flag --port, did you mean --listen or --http?`},
		{[]string{"generate", "--n=2"}, `tandem generate has no flag --n: see`},
		{[]string{"serve", "--target=decode", "--prefill=3"}, `tandem serve has no flag --prefill: 'tandem up' has it`},
		{[]string{"up", "--target=decode"}, `tandem up has no flag --target: 'tandem serve' has it`},
		{[]string{"serve", "--target=decode", "--kv-socket=relative"}, `--kv-socket: "relative" is neither auto nor off nor an absolute path: see`},
		{[]string{"serve", "--target=decode", "--kv-listen=7073"}, `--kv-listen: "7073" has no host: give 127.0.0.1:7073, or :7073 for every interface: see`},
		{[]string{"serve", "--target=decode", "--kv-advertise=0.0.0.0:1"}, `--kv-advertise: nobody can connect to 0.0.0.0:1`},
		{[]string{"generate", "--prompt=x", "--timeout=-1s"}, `--timeout: -1s is negative; 0 sets no limit: see`},
		{[]string{"generate", "--prompt=x", "--addr=here"}, `--addr: connect to "here": give host:port or unix:///path`},
		{[]string{"generate", "--prompt=x", "--addr=http://127.0.0.1:1"}, `--addr: connect to "http://127.0.0.1:1": this is a URL: pass the router's gRPC address as host:port or unix:///path: see`},
		{[]string{"chat", "--addr=here"}, `--addr: connect to "here": give host:port or unix:///path`},
		{[]string{"probe", "a:1", "--timeout=-1s"}, `--timeout: -1s is not above 0`},
		{[]string{"model", "synth", "--preset=huge", "--out=x"}, `--preset: no preset "huge"`},
		{[]string{"up", "--http=8080"}, `--http: "8080" has no host: give 127.0.0.1:8080, or :8080 for every interface: see`},
		{[]string{"up", "--metrics=here"}, `--metrics: "here" is neither HOST:PORT nor unix:///PATH: see`},
		{[]string{"up", "--control=unix://sock"}, `--control: "unix://sock" has no absolute path`},
		{[]string{"up", "--listen=127.0.0.1:99999"}, `--listen: "99999" is not a port: give one up to 65535`},
		{[]string{"serve", "--target=decode", "--listen=:none"}, `--listen: "none" is not a port`},
		{[]string{"serve", "--target=kvtransfer", "--store-memory=1B"}, `--store-memory`},
		{[]string{"workers", "--control=here"}, `--control: connect to "here": give host:port or unix:///path`},
		{[]string{"workers", "--role=router"}, `--role: "router" is not a role of a worker: pass prefill, decode or kvtransfer`},
		{[]string{"serve", "--target=kvtransfer", "--model=m"}, `--model does not apply to a block store`},
		{[]string{"serve", "--target=kvtransfer", "--decode-max-waiting=1"}, `--decode-max-waiting does not apply to a block store`},
		{[]string{"serve", "--target=kvtransfer", "--prefill-store-puts=1"}, `--prefill-store-puts does not apply to a block store`},
		{[]string{"serve", "--target=kvtransfer", "--kv-memory=1GiB", "--store-memory=1GiB"}, `--kv-memory does not apply to a block store`},
		{[]string{"serve", "--target=kvtransfer", "--router-queue-limit=1"}, `--router-queue-limit does not apply to a block store`},
		{[]string{"serve", "--target=kvtransfer", "--model-alias=m"}, `--model-alias does not apply to a block store`},
		{[]string{"generate", "extra"}, `tandem generate takes no argument "extra"`},
		{[]string{"version", "extra"}, `takes no argument "extra"`},
		{[]string{"completion"}, `needs the name of a shell: bash, zsh, fish, powershell`},
		{[]string{"completion", "csh"}, `no completion for "csh"`},
		{[]string{"probe", "a:1", "b:1"}, `takes one address`},
		{[]string{"model", "inspect", "a", "b"}, `takes one directory`},
		{[]string{"explain"}, `needs the REQUEST-ID`},
		{[]string{"explain", "r1", "--addr=127.0.0.1:1"}, `--addr needs --secret too, the request's secret that came with the answer; operators pass --control instead: see`},
		{[]string{"generate", "--temp=1"}, `tandem generate has no flag --temp, did you mean --temperature?`},
		{[]string{"help", "genrate"}, `no command is called "genrate"`},
		{[]string{"help", "model", "inspct"}, `no command is called "model inspct"`},
	}
	for _, c := range cases {
		got := run(t.Context(), "", nil, c.args...)
		checkFailure(t, got, 2, c.want)
		if got.stdout != "" {
			t.Errorf("%v prints %q", c.args, got.stdout)
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		got := run(t.Context(), "", nil, "completion", shell)
		if got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "tandem") {
			t.Errorf("%s: status %d, %s, %d bytes", shell, got.status, got.stderr, len(got.stdout))
		}
	}
}

// TestCompletionSaysWhatItNeeds: when it is loaded, not at each key press.
func TestCompletionSaysWhatItNeeds(t *testing.T) {
	if help := run(t.Context(), "", nil, "completion", "--help").stdout; !strings.Contains(help, "bash-completion") || !strings.Contains(help, "compinit") || !strings.Contains(help, "PATH") {
		t.Errorf("its help does not:\n%s", help)
	}
	folder := t.TempDir()
	script := filepath.Join(folder, "completion")
	write := func(path, text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for shell, c := range map[string]struct{ lacking, having, needs string }{
		"bash": {". $0", "_init_completion() { :; }; . $0", "bash-completion"},
		"zsh":  {". $0", "autoload -Uz compinit; compinit -D; . $0", "compinit"},
	} {
		t.Run(shell, func(t *testing.T) {
			program, err := exec.LookPath(shell)
			if err != nil {
				t.Skip("it is not here")
			}
			write(script, run(t.Context(), "", nil, "completion", shell).stdout, 0o600)
			said := func(commands string) string {
				cmd := exec.CommandContext(t.Context(), program, "-c", commands, script)
				cmd.Env = []string{"PATH=" + folder, "HOME=" + folder}
				out, _ := cmd.CombinedOutput()
				return string(out)
			}
			if out := said(c.lacking); !strings.Contains(out, c.needs) {
				t.Errorf("without it: %q", out)
			}
			if out := said(c.having); !strings.Contains(out, "not on the PATH") || strings.Contains(out, c.needs) {
				t.Errorf("without a program: %q", out)
			}
			write(filepath.Join(folder, "tandem"), "#!/bin/sh\n", 0o700)
			defer os.Remove(filepath.Join(folder, "tandem"))
			if out := said(c.having); out != "" {
				t.Errorf("with all that it needs: %q", out)
			}
		})
	}
}

func TestCompletionKnowsWorkers(t *testing.T) {
	router := &fakeRouter{workers: []*controlv1.ListWorkersResponse{twoWorkers()}}
	got := run(t.Context(), "", nil, "__complete", "drain", "--control", router.start(t), "")
	if !strings.Contains(got.stdout, "p1\tprefill, serving\n") || !strings.Contains(got.stdout, "d1\tdecode, draining\n") {
		t.Errorf("got %+v", got)
	}
	if got := run(t.Context(), "", nil, "__complete", "help", "model", ""); !strings.Contains(got.stdout, "synth\t") {
		t.Errorf("got %+v", got)
	}
	got = run(t.Context(), "", nil, "__complete", "generate", "--mode", "")
	if !strings.Contains(got.stdout, "auto\ndisaggregated\naggregated\n") {
		t.Errorf("got %+v", got)
	}
}

// TestCompletionKnowsChoices: flags of the mesh that take one of a few values.
func TestCompletionKnowsChoices(t *testing.T) {
	types := strings.NewReplacer("[", "", "]", "")
	for flag, want := range map[string]string{
		"cuda-weights": types.Replace(fmt.Sprint(cuda.WeightTypes())), "cuda-kv": types.Replace(fmt.Sprint(cuda.KVTypes())),
		"engine": "auto cpu cuda simulated", "device": "auto cpu cuda:0", "cuda-products": "own cublaslt", "generation-config": "model none", "block-tokens": "16 32 64 128 256",
		"log-format": "text json", "log-level": "debug info warn error", "kv-memory": "auto",
	} {
		for _, command := range []string{"up", "serve"} {
			got := run(t.Context(), "", nil, "__complete", command, "--"+flag, "")
			if lines := strings.Fields(got.stdout); strings.Join(lines[:max(len(lines)-1, 0)], " ") != want {
				t.Errorf("%s --%s: %q, want %q", command, flag, got.stdout, want)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	got := run(t.Context(), "", nil, "version", "--json")
	var build struct{ Version, Revision, Go, Platform string }
	if err := json.Unmarshal([]byte(got.stdout), &build); err != nil || build.Version == "" || build.Revision == "" || build.Go == "" || build.Platform == "" {
		t.Errorf("%v: %+v", err, got)
	}
	if got, flag := run(t.Context(), "", nil, "version"), run(t.Context(), "", nil, "--version"); got != flag {
		t.Errorf("version prints %+v, --version %+v", got, flag)
	}
	if got := run(t.Context(), "", nil, "version"); !strings.HasPrefix(got.stdout, "tandem ") || !strings.Contains(got.stdout, "(") {
		t.Errorf("got %+v", got)
	}
}
