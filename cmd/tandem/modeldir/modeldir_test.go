package modeldir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
)

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	at := func(path string) string { return filepath.Join(root, filepath.FromSlash(path)) }
	for _, dir := range []string{"checkout/models/fable", "usr/share/tandem/models/fable", "opt/models/fable", "mine"} {
		write(t, at(dir+"/config.json"))
	}
	write(t, at("empty/README"))
	write(t, at("gguf/model-Q4.gguf"))
	write(t, at("checkout/services/router/x"))
	cases := []struct {
		name   string
		places modeldir.Places
		flag   string
		want   string
		// fault is in the error instead.
		fault string
	}{
		{"flag first", modeldir.Places{Environment: at("empty"), WorkingDir: at("checkout")}, at("mine"), "mine", ""},
		{"then the environment", modeldir.Places{Environment: at("mine"), WorkingDir: at("checkout")}, "", "mine", ""},
		{"then the working directory", modeldir.Places{WorkingDir: at("checkout"), Executable: at("opt/bin/tandem")}, "", "checkout/models/fable", ""},
		{"or a parent", modeldir.Places{WorkingDir: at("checkout/services/router")}, "", "checkout/models/fable", ""},
		{"then beside the executable", modeldir.Places{WorkingDir: at("empty"), Executable: at("opt/bin/tandem")}, "", "opt/models/fable", ""},
		{"or right beside it", modeldir.Places{WorkingDir: at("empty"), Executable: at("checkout/tandem")}, "", "checkout/models/fable", ""},
		{"or in share", modeldir.Places{WorkingDir: at("empty"), Executable: at("usr/bin/tandem")}, "", "usr/share/tandem/models/fable", ""},
		{"nowhere", modeldir.Places{WorkingDir: at("empty")}, "", "", "pass --model DIR or set TANDEM_MODEL"},
		{"flag without a model", modeldir.Places{WorkingDir: at("checkout")}, at("empty"), "", "--model names"},
		{"environment without a model", modeldir.Places{Environment: at("gone"), WorkingDir: at("checkout")}, "", "", "TANDEM_MODEL names"},
		{"a name of Hugging Face", modeldir.Places{}, "meta-llama/Llama-3.1-8B", "", "no such file or directory (Tandem downloads nothing): pass a directory"},
		{"a folder of GGUF", modeldir.Places{}, at("gguf"), "", "but a GGUF file, which Tandem does not read: pass a directory with config.json"},
		{"a GGUF file", modeldir.Places{}, at("gguf/model-Q4.gguf"), "", "it is a GGUF file, which Tandem does not read"},
		{"a file", modeldir.Places{}, at("mine/config.json"), "", "it is a file, not a directory: pass a directory with config.json"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.places.Find(c.flag)
			switch {
			case c.fault != "":
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Fatalf("Find = %q, %v; want an error with %q", got, err, c.fault)
				}
			case err != nil:
				t.Fatal(err)
			case got != at(c.want):
				t.Fatalf("Find = %s, want %s", got, at(c.want))
			}
		})
	}
}

func TestBundledModelIsFoundFromATest(t *testing.T) {
	t.Setenv(modeldir.Environment, "")
	dir, err := modeldir.Find("")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(dir) != "fable" {
		t.Errorf("Find = %s, want the bundled model", dir)
	}
}
