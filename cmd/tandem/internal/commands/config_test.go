package commands_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("listen: 127.0.0.1:1\nlog-level: debug\n")

	for _, target := range []string{"up", "serve"} {
		// What is printed is a configuration, also where nothing is set.
		printed := filepath.Join(t.TempDir(), "printed.yaml")
		validates := func(text string) {
			t.Helper()
			if err := os.WriteFile(printed, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := run(t.Context(), "", nil, "config", "validate", printed); got.status != 0 || !strings.Contains(got.stdout, "of 'tandem "+target+"'") {
				t.Errorf("what config print %s prints is refused: %+v", target, got)
			}
		}
		validates(run(t.Context(), "", nil, "config", "print", target).stdout)
		environ := []string{"TANDEM_CONFIG=" + file, "TANDEM_LOG_LEVEL=error", "TANDEM_TARGET=decode"}
		got := run(t.Context(), "", environ, "config", "print", target, "--log-format=json")
		if got.status != 0 || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		for _, line := range []string{
			"listen: 127.0.0.1:1  # " + file + ":1\n", "log-level: error  # TANDEM_LOG_LEVEL\n",
			"log-format: json  # command line\n", "  # default\n",
		} {
			if !strings.Contains(got.stdout, line) {
				t.Errorf("config print %s lacks %q:\n%s", target, line, got.stdout)
			}
		}
		validates(got.stdout)
		got = run(t.Context(), "", environ, "config", "print", target, "--json")
		listen, _ := last(t, got.stdout)["listen"].(map[string]any)
		if listen["value"] != "127.0.0.1:1" || listen["source"] != file+":1" {
			t.Errorf("config print %s --json: %+v", target, got)
		}
	}

	if got := run(t.Context(), "", nil, "config", "validate", file); got.status != 0 || !strings.Contains(got.stdout, "is a valid configuration of 'tandem up' and of 'tandem serve'") {
		t.Errorf("got %+v", got)
	}
	// Values are checked as the command checks them.
	for _, c := range []struct{ target, text, want string }{
		{"serve", "target: decode\nlease-ttl: 1ms\n", "tandem: " + file + ":2: lease-ttl: 1ms is under 1s"},
		{"serve", "block-tokens: 33\n", ":1: block-tokens: "},
		{"up", "decode: 0\n", ":1: decode: 0 is outside 1 to"},
		{"up", "log-level: loud\n", `:1: log-level: "loud" is unknown: use debug, info, warn or error`},
	} {
		write(c.text)
		checkFailure(t, run(t.Context(), "", nil, "config", "validate", "--for", c.target, file), 1, c.want)
	}
	// Whose file it is follows from its keys.
	for _, c := range []struct{ text, valid, want string }{
		{"target: decode\nkv-memory: 1GiB\n", "serve", ""},
		{"listen: 0.0.0.0:7072\nkv-memory: 4GiB\n", "serve", ""}, // of a worker: a router would have to ask for keys
		{"target: router\nlisten: 0.0.0.0:7072\n", "", ":2: listen 0.0.0.0:7072: other machines can reach it"},
		{"decode: 2\n", "up", ""},
		{"log:\n  level: info\n", "up serve", ""},
		{"", "up serve", ""},
		{"decode: 0\n", "", ":1: decode: 0 is outside 1 to 256"},
		{"target: router\ndecode: 2\nadvertise: a:1\n", "", ":2: unknown key \"decode\": it is a setting of 'tandem up'"},
		{"decode: 2\nprefill: 1\ntraget: router\n", "", ":3: unknown key \"traget\""},
		{"prefil: 2\n", "", ":1: unknown key \"prefil\": did you mean \"prefill\"?"},
		{"profil: a\n", "", ":1: unknown key \"profil\": did you mean \"profile\"?"},
		{"targte: router\nlog-level: info\n", "", ":1: unknown key \"targte\": did you mean \"target\"?"},
		{"target: cook\n", "", ":1: target: \"cook\" is not router"},
	} {
		write(c.text)
		got := run(t.Context(), "", nil, "config", "validate", "--json", file)
		result := last(t, got.stdout)
		valid, _ := result["for"].([]any)
		if names := strings.Trim(fmt.Sprint(valid), "[]"); names != c.valid || (result["valid"] == true) != (c.valid != "") || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%q: %+v", c.text, got)
		}
	}
	write("decode: 2\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", "--for=serve", file), 1, ":1: unknown key \"decode\": it is a setting of 'tandem up'\n")
	// A key of the other command is the other's, however it is spelled here.
	for _, c := range []struct{ command, text, want string }{
		{"serve", "target: router\nprefill: 2\n", ":2: unknown key \"prefill\": it is a setting of 'tandem up'\n"},
		{"serve", "decode: 2\n", ":1: unknown key \"decode\": it is a setting of 'tandem up'\n"},
		{"up", "target: router\n", ":1: unknown key \"target\": it is a setting of 'tandem serve'\n"},
		{"up", "router:\n  id: r1\n", ":2: unknown key \"router.id\": keys are named as the command's flags"},
		{"up", "bogus: 1\n", ":1: unknown key \"bogus\": keys are named as the command's flags"},
		{"serve", "prefil: 2\n", ":1: unknown key \"prefil\": did you mean "},
	} {
		write(c.text)
		checkFailure(t, run(t.Context(), "", nil, c.command, "--config", file), 1, c.want)
		checkFailure(t, run(t.Context(), "", nil, "config", "print", c.command, "--config", file), 1, c.want)
	}
	// One file, and one environment, may do for several parts.
	write("target: kvtransfer\nmodel: m\nstore-memory: 1GiB\nlease-ttl: 1ms\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, ":4: lease-ttl: 1ms is under 1s")
	if got := run(t.Context(), "", []string{"TANDEM_MODEL=m", "TANDEM_PREFILL_MAX_WAITING=7"}, "serve", "--config", file); !strings.Contains(got.stderr, ":4: lease-ttl: 1ms is under 1s") {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "serve", "--config", file), 1, "tandem: "+file+":4: lease-ttl: 1ms is under 1s")
	checkFailure(t, run(t.Context(), "", []string{"TANDEM_KV_TRANSPORT=pigeon"}, "serve", "--target=decode"), 1, "tandem: environment variable TANDEM_KV_TRANSPORT: \"pigeon\" is none of")
	checkFailure(t, run(t.Context(), "", []string{"TANDEM_KV_CONNECTIONS=99"}, "up"), 1, "tandem: environment variable TANDEM_KV_CONNECTIONS: 99 is outside 1 to 8")
	checkFailure(t, run(t.Context(), "", nil, "serve", "--config", file, "--lease-ttl=2ms"), 2, "--lease-ttl: 2ms is under 1s: see 'tandem serve --help'")
	// What is wrong may come out only later.
	checkFailure(t, run(t.Context(), "", []string{"TANDEM_MODEL=" + file + "/none"}, "up", "--listen=127.0.0.1:0", "--http=", "--metrics=", "--control="), 1, "tandem: environment variable TANDEM_MODEL names "+file+"/none")
	// A store has nothing against what environments say to others.
	checkFailure(t, run(t.Context(), "", []string{"TANDEM_DECODE_CHUNK_TOKENS=33", "TANDEM_LEASE_TTL=3ms"}, "serve", "--target=kvtransfer"), 1, "environment variable TANDEM_LEASE_TTL: 3ms")
	if got := run(t.Context(), "", []string{"TANDEM_DECODE_CHUNK_TOKENS=33", "TANDEM_LISTEN=nowhere"}, "serve", "--target=kvtransfer"); strings.Contains(got.stderr, "chunk-tokens") {
		t.Errorf("got %+v", got)
	}
	write("max-sequences: 4000\n") // against the default of another flag
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, "--max-batch-tokens: 1024 is outside 4000 (--max-sequences) to 1048576")
	write("listne: x\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, `:1: unknown key "listne": did you mean "listen"?`)
	got := run(t.Context(), "", nil, "config", "validate", file, "--json")
	checkFailure(t, got, 1, "unknown key")
	if result := last(t, got.stdout); result["valid"] != false || result["error"] == "" {
		t.Errorf("got %+v", got)
	}
	checkFailure(t, run(t.Context(), "", nil, "serve", "--config", file), 1, "unknown key")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file, "--for", "cook"), 2, "up, serve")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate"), 2, "needs FILE")
}
