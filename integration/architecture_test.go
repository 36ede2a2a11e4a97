package integration_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/api"
)

// The page of the architecture names every folder, no other, and the stages of a request
// in their order.
func TestArchitecturePage(t *testing.T) {
	root := checkoutRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\|[^|]*\\| `([^`]+)` \\|$").FindAllStringSubmatch(string(text), -1) {
		named[row[1]] = true
		if info, err := os.Stat(filepath.Join(root, row[1])); err != nil || !info.IsDir() {
			t.Errorf("the page sends readers to %s, which is no folder", row[1])
		}
	}
	for _, pattern := range []string{"proto", "client", "loadtest", "integration", "deploy", "pkg/*", "pkg/engine/*", "services/*", "services/router/*", "cmd/tandem/*"} {
		folders, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(folders) == 0 {
			t.Fatalf("%s: %v, %v", pattern, folders, err)
		}
		for _, folder := range folders {
			info, err := os.Stat(folder)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.ToSlash(strings.TrimPrefix(folder, root+string(filepath.Separator)))
			hidden := testHelper(name) || strings.HasSuffix(name, "/internal")
			if info.IsDir() && !hidden && !named[name] {
				t.Errorf("the page does not say what %s is for", name)
			}
		}
	}

	_, life, _ := strings.Cut(string(text), "## The life of a request")
	_, life, _ = strings.Cut(life, "decode worker\n") // the picture, below its heads
	life, _, found := strings.Cut(life, "```")
	if !found {
		t.Fatal("the page does not tell the life of a request")
	}
	var said []string
	for _, word := range strings.Fields(life) {
		if slices.ContainsFunc(stages(), func(stage string) bool { return stage == word }) {
			said = append(said, word)
		}
	}
	if !slices.Equal(said, stages()) {
		t.Errorf("the picture has the stages %v, which are %v", said, stages())
	}
}

func stages() []string {
	var names []string
	for s := range api.NumStages {
		names = append(names, s.String())
	}
	return names
}
