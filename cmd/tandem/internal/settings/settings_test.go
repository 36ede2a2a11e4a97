package settings_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
)

type values struct {
	listen  string
	workers int
	grace   time.Duration
	share   float64
	etcd    []string
	verbose bool
	waiting uint
	json    bool
}

func flagSet(t *testing.T) (*pflag.FlagSet, *values) {
	t.Helper()
	v := new(values)
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.StringVar(&v.listen, "listen", "127.0.0.1:7070", "")
	fs.IntVar(&v.workers, "workers", 1, "")
	fs.DurationVar(&v.grace, "drain-grace", 5*time.Second, "")
	fs.Float64Var(&v.share, "share", 0.5, "")
	fs.StringSliceVar(&v.etcd, "etcd", []string{"a:1"}, "")
	fs.BoolVar(&v.verbose, "verbose", false, "")
	fs.UintVar(&v.waiting, "router.max-waiting", 64, "")
	fs.BoolVar(&v.json, "json", false, "")
	fs.String("config", "", "")
	settings.CommandLineOnly(fs, "json")
	return fs, v
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApply(t *testing.T) {
	cases := []struct {
		name    string
		args    []string
		environ []string
		yaml    string
		want    func(v *values) bool
		// source of --listen.
		source string
	}{
		{"defaults", nil, nil, "", func(v *values) bool { return v.listen == "127.0.0.1:7070" && v.workers == 1 }, "default"},
		{"file", nil, nil, "\nlisten: :1\nworkers: 3\n", func(v *values) bool { return v.listen == ":1" && v.workers == 3 }, ":2"},
		{"environment over file", nil, []string{"TANDEM_LISTEN=:2"}, "listen: :1\nworkers: 3\n", func(v *values) bool { return v.listen == ":2" && v.workers == 3 }, "TANDEM_LISTEN"},
		{"flag over both", []string{"--listen=:3"}, []string{"TANDEM_LISTEN=:2"}, "listen: :1\n", func(v *values) bool { return v.listen == ":3" }, "command line"},
		{"flag at its default still wins", []string{"--workers=1"}, []string{"TANDEM_WORKERS=9"}, "", func(v *values) bool { return v.workers == 1 }, "default"},
		{"empty variable is none", nil, []string{"TANDEM_LISTEN="}, "listen: :1\n", func(v *values) bool { return v.listen == ":1" }, ":1"},
		{"unknown variables are others'", nil, []string{"TANDEM_PORT=tcp://10.0.0.1:7070", "HOME=/"}, "", func(v *values) bool { return v.listen == "127.0.0.1:7070" }, "default"},
		{"nested keys", nil, nil, "drain:\n  grace: 1m\nrouter:\n  max-waiting: 7\n", func(v *values) bool { return v.grace == time.Minute && v.waiting == 7 }, "default"},
		{"nested keys with a dash", nil, nil, "router:\n  max:\n    waiting: 7\n", func(v *values) bool { return v.waiting == 7 }, "default"},
		{"dotted key", nil, nil, "router.max-waiting: 7\n", func(v *values) bool { return v.waiting == 7 }, "default"},
		{"list replaces the default", nil, nil, "etcd: [b:1, c:1]\n", func(v *values) bool { return strings.Join(v.etcd, " ") == "b:1 c:1" }, "default"},
		{"list in one value", nil, nil, "etcd: b:1,c:1\n", func(v *values) bool { return strings.Join(v.etcd, " ") == "b:1 c:1" }, "default"},
		{"list from the environment", nil, []string{"TANDEM_ETCD=b:1,c:1"}, "etcd: [d:1]\n", func(v *values) bool { return strings.Join(v.etcd, " ") == "b:1 c:1" }, "default"},
		{"empty file", nil, nil, "# nothing\n", func(v *values) bool { return v.workers == 1 }, "default"},
		{"null document", nil, nil, "---\n", func(v *values) bool { return v.workers == 1 }, "default"},
		{"command line only stays", nil, []string{"TANDEM_JSON=true"}, "", func(v *values) bool { return !v.json }, "default"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fs, v := flagSet(t)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			path := ""
			if c.yaml != "" {
				path = file(t, c.yaml)
			}
			if err := settings.Apply(fs, path, c.environ); err != nil {
				t.Fatal(err)
			}
			if !c.want(v) {
				t.Errorf("got %+v", *v)
			}
			if got := settings.Source(fs.Lookup("listen")); got != c.source && got != path+c.source {
				t.Errorf("source of --listen = %q, want %q", got, c.source)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	cases := []struct {
		name, yaml string
		environ    []string
		want       []string
	}{
		{"unknown key", "workers: 2\nlistne: x\n", nil, []string{":2: ", `unknown key "listne"`, `did you mean "listen"?`}},
		{"unknown key like no other", "workers: 2\nbogusbogus: x\n", nil, []string{`:2: unknown key "bogusbogus": keys are named as the command's flags`}},
		{"a tab", "\tworkers: 2\n", nil, []string{": not YAML: ", ": a line begins with a tab: indent with spaces"}},
		{"unknown nested key of a flag with a hyphen", "drain:\n  grce: 2s\n", nil, []string{":2: ", `did you mean "drain.grace"?`}},
		{"unknown nested key", "router:\n  max-wating: 2\n", nil, []string{":2: ", `"router.max-wating"`, `did you mean "router.max-waiting"?`}},
		{"unknown key that the command line would override", "foo: 2\n", nil, []string{`unknown key "foo"`}},
		{"command line only", "json: true\n", nil, []string{`unknown key "json"`}},
		{"wrong type", "workers: many\n", nil, []string{":1: ", `workers: "many" is not a whole number`}},
		{"list for one value", "workers: [1, 2]\n", nil, []string{`workers: takes one value, not a list`}},
		{"keys for one value", "workers:\n  count: 2\n", nil, []string{`takes a value, not keys`}},
		{"no value", "workers:\n", nil, []string{`has no value`}},
		{"twice", "workers: 1\nworkers: 2\n", nil, []string{":2: ", "line 1"}},
		{"twice in two forms", "router.max-waiting: 1\nrouter:\n  max-waiting: 2\n", nil, []string{":3: ", "line 1"}},
		{"not a mapping", "- a\n", nil, []string{":1: want keys and values"}},
		{"not YAML", "a: [b\n", nil, []string{"not YAML"}},
		{"two documents", "workers: 1\n---\nworkers: 2\n", nil, []string{"more than one document"}},
		{"alias", "listen: &a x\netcd: *a\n", nil, []string{":2: ", "write it out"}},
		{"number as a key", "1: x\n", nil, []string{"plain name"}},
		{"list of lists", "etcd: [[a]]\n", nil, []string{"plain value"}},
		{"wrong variable", "", []string{"TANDEM_DRAIN_GRACE=soon"}, []string{`TANDEM_DRAIN_GRACE: "soon" is not a duration`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fs, _ := flagSet(t)
			if err := fs.Parse(nil); err != nil {
				t.Fatal(err)
			}
			path := ""
			if c.yaml != "" {
				path = file(t, c.yaml)
			}
			err := settings.Apply(fs, path, c.environ)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
			if c.yaml == "" {
				return
			}
			other, _ := flagSet(t)
			if settings.Validate(other, path) == nil {
				t.Error("Validate finds no fault")
			}
		})
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	fs, _ := flagSet(t)
	err := settings.Apply(fs, "nowhere.yaml", nil)
	if err == nil || !strings.Contains(err.Error(), "nowhere.yaml") {
		t.Fatalf("error %v does not name the file", err)
	}
}

func TestFile(t *testing.T) {
	environ := []string{"TANDEM_CONFIG=env.yaml"}
	fs, _ := flagSet(t)
	if got := settings.File(fs, nil); got != "" {
		t.Errorf("File = %q, want none", got)
	}
	if got := settings.File(fs, environ); got != "env.yaml" {
		t.Errorf("File = %q, want that of the environment", got)
	}
	if err := fs.Parse([]string{"--config=flag.yaml"}); err != nil {
		t.Fatal(err)
	}
	if got := settings.File(fs, environ); got != "flag.yaml" {
		t.Errorf("File = %q, want that of the flag", got)
	}
}

// What is printed, read again, gives the same settings.
func TestPrintRoundTrip(t *testing.T) {
	fs, _ := flagSet(t)
	args := []string{"--listen=#1: 'odd' \"name\"", "--workers=-3", "--drain-grace=90s", "--share=1e-9", "--etcd=x:1,y:1", "--verbose", "--router.max-waiting=0"}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := settings.Print(&printed, fs); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(printed.String(), "json") {
		t.Errorf("a flag of the command line only is printed:\n%s", printed.String())
	}
	again, _ := flagSet(t)
	if err := settings.Apply(again, file(t, printed.String()), nil); err != nil {
		t.Fatalf("%v in:\n%s", err, printed.String())
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if got := again.Lookup(f.Name).Value.String(); got != f.Value.String() {
			t.Errorf("--%s = %s, want %s", f.Name, got, f.Value)
		}
	})
}

// What 0 means is said where it is no number.
func TestPrintZero(t *testing.T) {
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	fs.Duration("timeout", 0, "time limit; 0: none")
	fs.Int("threads", 0, "threads (default: all)")
	fs.Int("stores", 0, "number of stores")
	fs.Duration("grace", time.Second, "time to finish; 0: none")
	var printed strings.Builder
	if err := settings.Print(&printed, fs); err != nil {
		t.Fatal(err)
	}
	const want = "grace: 1s  # default\nstores: 0  # default\nthreads: 0  # default; 0: all\ntimeout: 0s  # default; 0: none\n"
	if printed.String() != want {
		t.Errorf("got\n%swant\n%s", &printed, want)
	}
}

func FuzzFileNeverPanics(f *testing.F) {
	for _, seed := range []string{"listen: x", "router: {max: {waiting: 1}}", "a: &a [*a]", "? [x]\n: y", "!!binary x: y", "<<: {listen: x}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fs, _ := flagSet(t)
		if err := settings.Validate(fs, file(t, text)); err != nil && !strings.Contains(err.Error(), "tandem.yaml") {
			t.Errorf("error %q does not name the file", err)
		}
	})
}

// TestUnknownKey: programs find the key and its place in the error, and what has it.
func TestUnknownKey(t *testing.T) {
	fs, _ := flagSet(t)
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(file, []byte("workers: 2\nrouter:\n  max-wating: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown, is := errors.AsType[*settings.UnknownKey](settings.Apply(fs, file, nil))
	want := settings.UnknownKey{File: file, Line: 3, Key: "router.max-wating", Nearest: "router.max-waiting"}
	if !is || *unknown != want {
		t.Errorf("%+v, want %+v", unknown, want)
	}
	if got, want := want.Because("why"), file+`:3: unknown key "router.max-wating": why`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for key, want := range map[string]bool{"router.max-waiting": true, "router-max-waiting": true, "workers": true, "router.max-wating": false, "config": false} {
		if settings.HasKey(fs, key) != want {
			t.Errorf("HasKey of %q is %t", key, !want)
		}
	}
}
