package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checkoutRoot is the folder that holds go.work.
func checkoutRoot(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.work")); err != nil {
		t.Fatalf("the checkout's root has no go.work: %v", err)
	}
	return dir
}

// sourceFiles are the files of the checkout, relative to its root: without git's
// own, and without what is built, which .gitignore names.
func sourceFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", ".bin", ".out", "testdata"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if entry.Type().IsRegular() {
			rel, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// importEdges are the imports of every Go file, whatever its build constraints:
// `go list` would show those of one platform.
func importEdges(t *testing.T, root string) []edge {
	t.Helper()
	var edges []edge
	for _, file := range sourceFiles(t, root) {
		if path.Ext(file) != ".go" || strings.HasPrefix(file, "tools/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		for _, spec := range parsed.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Errorf("%s: import %s: %v", file, spec.Path.Value, err)
				continue
			}
			edges = append(edges, edge{from: ours + path.Dir(file), to: to, file: file, test: strings.HasSuffix(file, "_test.go")})
		}
	}
	return edges
}

// module is what `go mod edit -json` says of one go.mod.
type module struct {
	// dir is the module's folder, relative to the root.
	dir     string
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Tool []struct{ Path string }
}

func readModules(t *testing.T, root string) []module {
	t.Helper()
	var modules []module
	for _, file := range sourceFiles(t, root) {
		if path.Base(file) != "go.mod" {
			continue
		}
		out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, file)).Output()
		if err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		m := module{dir: path.Dir(file)}
		if err := json.Unmarshal(out, &m); err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		modules = append(modules, m)
	}
	return modules
}

func readWorkspace(t *testing.T, root string) (used []string) {
	t.Helper()
	out, err := exec.Command("go", "work", "edit", "-json", filepath.Join(root, "go.work")).Output()
	if err != nil {
		t.Fatalf("read go.work: %v", err)
	}
	var work struct {
		Use []struct{ DiskPath string }
	}
	if err := json.Unmarshal(out, &work); err != nil {
		t.Fatalf("read go.work: %v", err)
	}
	for _, use := range work.Use {
		used = append(used, path.Clean(use.DiskPath))
	}
	return used
}

// moduleFaults says what keeps the modules from building alike, in the workspace
// and each by itself.
func moduleFaults(modules []module, workspace []string) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	type choice struct{ version, dir string }
	versions := map[string]choice{}
	goVersion := choice{}
	for _, m := range modules {
		if want := strings.TrimSuffix(ours, "/") + "/" + m.dir; m.Module.Path != want {
			fault("%s: the module is called %s, want %s: folders and import paths are the same", m.dir, m.Module.Path, want)
		}
		if goVersion.version == "" {
			goVersion = choice{m.Go, m.dir}
		} else if m.Go != goVersion.version {
			fault("%s: go %s, but %s says go %s: one toolchain builds all", m.dir, m.Go, goVersion.dir, goVersion.version)
		}
		if m.dir == "tools" || strings.HasPrefix(m.dir, "tools/") {
			if slices.Contains(workspace, m.dir) {
				fault("go.work uses %s: the linters' requirements would raise everybody's; take it out", m.dir)
			}
			continue
		}
		if !slices.Contains(workspace, m.dir) {
			fault("go.work does not use %s: `go test work` would pass it by", m.dir)
		}
		if len(m.Tool) > 0 {
			fault("%s: tool %s belongs into tools/go.mod", m.dir, m.Tool[0].Path)
		}
		replaced := map[string]string{}
		for _, r := range m.Replace {
			replaced[r.Old.Path] = r.New.Path
			if !strings.HasPrefix(r.Old.Path, ours) {
				fault("%s: replaces %s: whoever imports this module would not get the replacement", m.dir, r.Old.Path)
			}
		}
		for _, r := range m.Require {
			if sibling, ok := strings.CutPrefix(r.Path, ours); ok {
				up := strings.Repeat("../", strings.Count(m.dir, "/")+1)
				if got := replaced[r.Path]; got != up+sibling {
					fault("%s: requires %s but replaces it by %q, want %q: GOWORK=off would not build", m.dir, sibling, got, up+sibling)
				}
				continue
			}
			if first, ok := versions[r.Path]; !ok {
				versions[r.Path] = choice{r.Version, m.dir}
			} else if first.version != r.Version {
				fault("%s requires %s %s, %s requires %s: what is tested in the workspace is not what is built alone; run make tidy",
					m.dir, r.Path, r.Version, first.dir, first.version)
			}
		}
	}
	return faults
}

func TestModulesAgree(t *testing.T) {
	root := checkoutRoot(t)
	for _, f := range moduleFaults(readModules(t, root), readWorkspace(t, root)) {
		t.Error(f)
	}
}

func TestModuleFaultsAreFound(t *testing.T) {
	parse := func(dir, text string) module {
		m := module{dir: dir}
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	named := func(dir, rest string) module {
		return parse(dir, `{"Module":{"Path":"`+ours+dir+`"},"Go":"1.26.0"`+rest+`}`)
	}
	pkg := named("pkg", `,"Require":[{"Path":"example.com/a","Version":"v1.0.0"}]`)
	sibling := `{"Path":"` + ours + `pkg","Version":"v0.0.0"}`
	cases := []struct {
		name      string
		other     module
		workspace []string
		want      string
	}{
		{"agree", named("services/router", `,"Require":[`+sibling+`,{"Path":"example.com/a","Version":"v1.0.0"}],"Replace":[{"Old":{"Path":"`+ours+`pkg"},"New":{"Path":"../../pkg"}}]`), nil, ""},
		{"no replace", named("services/router", `,"Require":[`+sibling+`]`), nil, "GOWORK=off"},
		{"wrong replace", named("services/router", `,"Require":[`+sibling+`],"Replace":[{"Old":{"Path":"`+ours+`pkg"},"New":{"Path":"../pkg"}}]`), nil, "GOWORK=off"},
		{"foreign replace", named("services/router", `,"Replace":[{"Old":{"Path":"example.com/a"},"New":{"Path":"example.com/b","Version":"v1.0.0"}}]`), nil, "replaces example.com/a"},
		{"versions", named("services/router", `,"Require":[{"Path":"example.com/a","Version":"v1.0.1"}]`), nil, "requires example.com/a v1.0.1"},
		{"go version", parse("services/router", `{"Module":{"Path":"`+ours+`services/router"},"Go":"1.25.0"}`), nil, "one toolchain"},
		{"name", parse("services/router", `{"Module":{"Path":"example.com/router"},"Go":"1.26.0"}`), nil, "is called"},
		{"tool", named("services/router", `,"Tool":[{"Path":"example.com/tool"}]`), nil, "tools/go.mod"},
		{"not in the workspace", named("services/router", ``), []string{"pkg"}, "does not use"},
		{"tools apart", named("tools", `,"Require":[{"Path":"example.com/a","Version":"v9.0.0"}],"Tool":[{"Path":"example.com/tool"}]`), []string{"pkg"}, ""},
		{"tools in the workspace", named("tools", ``), []string{"pkg", "tools"}, "go.work uses tools"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			workspace := c.workspace
			if workspace == nil {
				workspace = []string{"pkg", c.other.dir}
			}
			found := moduleFaults([]module{pkg, c.other}, workspace)
			if c.want == "" && len(found) > 0 {
				t.Fatalf("want no fault, got %v", found)
			}
			if c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)) {
				t.Fatalf("want one fault with %q, got %v", c.want, found)
			}
		})
	}
}

// homeFolder matches a path into somebody's home. Containers' own users are fine.
var homeFolder = regexp.MustCompile(`(/home/|/Users/|C:\\Users\\)([A-Za-z][\w.-]*)[/\\]`)

// machinePath is the first path of a developer's machine in text, or "".
func machinePath(text []byte, checkout string) string {
	for _, match := range homeFolder.FindAllSubmatch(text, -1) {
		if user := string(match[2]); user != "nonroot" && user != "runner" {
			return string(match[0])
		}
	}
	// A checkout right under the root, such as /src in a container, is no secret.
	if strings.Count(checkout, "/") > 1 && bytes.Contains(text, []byte(checkout+"/")) {
		return checkout
	}
	return ""
}

func TestNoFileNamesADevelopersMachine(t *testing.T) {
	root := checkoutRoot(t)
	for _, file := range sourceFiles(t, root) {
		if info, err := os.Stat(filepath.Join(root, file)); err != nil || info.Size() > 1<<20 {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if found := machinePath(text, root); found != "" {
			t.Errorf("%s mentions %s: nobody else has that path", file, found)
		}
	}
}

func TestMachinePathsAreFound(t *testing.T) {
	cases := map[string]bool{
		"see /ho" + "me/alice/tandem/x.go":  true,
		"see /Us" + "ers/bob/tandem":        true,
		`C:\Us` + `ers\carol\tandem`:        true,
		"at /opt/build/tandem/go.work":      true,
		"in /opt/build/tandemonium/go.work": false,
		"WORKDIR /home/nonroot/":            false,
		"/v1/home/page and Users/guide":     false,
	}
	for text, want := range cases {
		if got := machinePath([]byte(text), "/opt/build/tandem"); (got != "") != want {
			t.Errorf("machinePath(%q) = %q, want found: %v", text, got, want)
		}
	}
}
