package docstest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/integration/docstest"
)

func TestBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want []docstest.Block
	}{
		"none":                    {"text\n```go\ntandem up\n```\n```\nart\n```\n", nil},
		"one that is run":         {"a\n```sh run\ntandem workers\n```\n", []docstest.Block{{Line: 2, Text: "tandem workers\n", Run: true}}},
		"one that takes long":     {"```sh run long\nx\n```", []docstest.Block{{Line: 1, Text: "x\n", Run: true, Long: true}}},
		"one that is not run":     {"```sh norun: needs a GPU\nx\n```", []docstest.Block{{Line: 1, Text: "x\n", Reason: "needs a GPU"}}},
		"unmarked":                {"```sh\nx\n```", []docstest.Block{{Line: 1, Text: "x\n", Fault: "say behind ```sh whether it is run: run, run long, or norun: and why"}}},
		"without a reason":        {"```sh norun:\nx\n```", []docstest.Block{{Line: 1, Text: "x\n", Fault: "say behind norun: why it is not run"}}},
		"another shell":           {"```bash run\nx\n```", []docstest.Block{{Line: 1, Text: "x\n", Fault: "begin it with ```sh run, or with ```sh norun: and why"}}},
		"commands of no language": {"```\ntandem up\n```", []docstest.Block{{Line: 1, Text: "tandem up\n", Fault: "begin it with ```sh run, or with ```sh norun: and why"}}},
		"in a list":               {"- a\n\n  ````sh run\n  ```\n  ````\n", []docstest.Block{{Line: 3, Text: "  ```\n", Run: true}}},
		"without an end":          {"```sh run\nx", []docstest.Block{{Line: 1, Text: "x\n", Run: true}}},
	} {
		if got := docstest.Blocks("", c.page); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSteps(t *testing.T) {
	const script = `go build -o tandem ./cmd/tandem
./tandem up --prefill 2 &     # first
./tandem generate --prompt "a & tandem up"
tandem model synth --out x && go run ./cmd/tandem up --model x   # second
curl \
  -d '{"a": 1}'
`
	want := []docstest.Step{
		{Text: "go build -o tandem ./cmd/tandem"},
		{Mesh: true, Text: "./tandem up --prefill 2"},
		{Text: "# first\n./tandem generate --prompt \"a & tandem up\"\ntandem model synth --out x"},
		{Mesh: true, Text: "go run ./cmd/tandem up --model x"},
		{Text: "# second\ncurl \\\n  -d '{\"a\": 1}'"},
	}
	got, err := docstest.Steps(script)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %+v, want %+v", err, got, want)
	}
	if steps, err := docstest.Steps("tandem generate --prompt 'x"); err == nil {
		t.Errorf("an open quote gives %+v", steps)
	}
}

func TestCalls(t *testing.T) {
	got, err := docstest.Calls("cat x | tandem bench tokenizer --text - && ./tandem serve --etcd … &\ndocker compose exec router /bin/tandem workers\nx=$(go run ../cmd/tandem version)\n")
	if want := []string{"bench tokenizer --text -", "serve --etcd", "version"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
}

// No page makes any of them fail otherwise than with an error.
func FuzzBlocks(f *testing.F) {
	f.Add("```sh run\ntandem up &\na && tandem up\n```\n")
	f.Add("~~~~sh norun: x\n~~~\n")
	f.Fuzz(func(t *testing.T, page string) {
		for _, b := range docstest.Blocks("p", page) {
			if b.Line < 1 || b.Line > 1+strings.Count(page, "\n") {
				t.Errorf("line %d", b.Line)
			}
			if steps, err := docstest.Steps(b.Text); err == nil {
				for _, s := range steps {
					if !strings.Contains(b.Text, s.Text) {
						t.Errorf("%q is not in it", s.Text)
					}
				}
			}
			_, _ = docstest.Calls(b.Text)
		}
	})
}
