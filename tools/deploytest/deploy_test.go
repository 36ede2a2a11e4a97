package deploytest_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tandem-serving/tandem/tools/deploytest"
)

const root = "../.."

// settings are asked of a binary that is built once.
var settings = sync.OnceValues(func() (*deploytest.Settings, error) {
	folder, err := os.MkdirTemp("", "tandem-validate-")
	if err != nil {
		return nil, err
	}
	cleanup = func() { _ = os.RemoveAll(folder) }
	return deploytest.NewSettings(root, folder)
})

var cleanup = func() {}

func TestMain(m *testing.M) {
	status := m.Run()
	cleanup()
	os.Exit(status)
}

// overlays are all folders that can be applied.
func overlays(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(root, "deploy", "k8s", "overlays", "*"))
	if err != nil || len(folders) < 3 {
		t.Fatalf("%d overlays: %v", len(folders), err)
	}
	return folders
}

func render(t *testing.T, folder string) string {
	t.Helper()
	text, err := deploytest.Render(folder)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOverlays(t *testing.T) {
	s, err := settings()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range overlays(t) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			m, err := deploytest.Parse([]byte(render(t, folder)))
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range append(m.Check(), s.Check(m)...) {
				t.Error(problem)
			}
			if open := m.AskNobody(); (len(open) > 0) != (filepath.Base(folder) == "dev") {
				t.Errorf("%d routers ask clients for no key: %v", len(open), open)
			}
		})
	}
}

func TestComposeSetsRealFlags(t *testing.T) {
	s, err := settings()
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := os.ReadFile(filepath.Join(root, "deploy", "compose", "tls.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range s.CheckCompose(encrypted) {
		t.Error("tls.yaml: ", problem)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "compose", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range s.CheckCompose(text) {
		t.Error(problem)
	}
	for what, spoil := range map[string][2]string{
		"a wrong name":            {"TANDEM_ETCD:", "TANDEM_ETCDS:"},
		"a port open to everyone": {"TANDEM_CONTROL: 127.0.0.1:7090", "TANDEM_CONTROL: 0.0.0.0:7090"},
	} {
		spoiled := strings.Replace(string(text), spoil[0], spoil[1], 1)
		if problems := s.CheckCompose([]byte(spoiled)); len(problems) != 1 {
			t.Errorf("%s is not found: %v", what, problems)
		}
	}
}

// deployed are the YAML files of deploy/, and the metrics document.
func deployed(t *testing.T) (document []byte, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{}
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	document, err = os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	return document, files
}

func TestMetricsExist(t *testing.T) {
	document, files := deployed(t)
	for _, problem := range deploytest.CheckMetrics(document, files) {
		t.Error(problem)
	}
	files["spoiled.yaml"] = []byte("query: sum(tandem_worker_backlog_token)")
	if problems := deploytest.CheckMetrics(document, files); len(problems) != 1 {
		t.Errorf("a wrong name is not found: %v", problems)
	}
}

var (
	// duration is one as Prometheus reads it, or none.
	duration = regexp.MustCompile(`^(([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$`)
	// metricRow is a row of a table of docs/metrics.md: names, and the type with the labels.
	metricRow = regexp.MustCompile("(?m)^\\| (`tandem_[^|]*) \\| ([^|]*) \\|")
	quoted    = regexp.MustCompile("`(\\w+)`")
	metric    = regexp.MustCompile(`tandem_\w+`)
	ranges    = regexp.MustCompile(`\[([^\]]*)\]`)
	label     = regexp.MustCompile(`\$labels\.(\w+)`)
)

// labelsOf are the labels of each metric in docs/metrics.md, and those that Prometheus adds.
func labelsOf(document []byte) map[string][]string {
	out := map[string][]string{}
	for _, row := range metricRow.FindAllSubmatch(document, -1) {
		labels := []string{"instance", "job"}
		for _, name := range quoted.FindAllSubmatch(row[2], -1) {
			labels = append(labels, string(name[1]))
		}
		for _, name := range metric.FindAll(row[1], -1) {
			out[string(name)] = labels
		}
	}
	return out
}

// unknownLabels are the labels in the text of an alert that no metric of its expression has.
func unknownLabels(labels map[string][]string, expression, text string) (problems []string) {
	var known []string
	for _, name := range metric.FindAllString(expression, -1) {
		known = append(known, labels[name]...)
	}
	for _, used := range label.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(known, used[1]) {
			problems = append(problems, fmt.Sprintf("its metrics have no label %s, only %q", used[1], known))
		}
	}
	return problems
}

// TestAlertRules reads the rules as Prometheus does, which refuses a file with a key that it does not
// know, a duration that is none, and no label that is not there: that shows as nothing in a message.
// TestMetricsExist knows their metrics.
func TestAlertRules(t *testing.T) {
	document, _ := deployed(t)
	labels := labelsOf(document)
	text, err := os.ReadFile(filepath.Join(root, "deploy", "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	if problems := unknownLabels(labels, "tandem_worker_step_running_seconds > 60", "{{ $labels.wroker }} of {{ $labels.worker }}"); len(problems) != 1 {
		t.Errorf("a wrong label is not found: %v", problems)
	}
	alerts := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || alerts[rule.Alert] || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
				t.Errorf("%q has no name of its own, no severity or no summary", rule.Alert)
			}
			if !strings.Contains(rule.Expr, "tandem_") {
				t.Errorf("%s asks for no metric of Tandem: %s", rule.Alert, rule.Expr)
			}
			if !duration.MatchString(rule.For) {
				t.Errorf("%s has to hold for %q, which is no duration", rule.Alert, rule.For)
			}
			// With a scrape interval of a minute, a shorter range may have one sample, and no rate.
			for _, of := range ranges.FindAllStringSubmatch(rule.Expr, -1) {
				if long, err := time.ParseDuration(of[1]); err != nil || long < 150*time.Second {
					t.Errorf("%s: a range of %s is too short, or none: %v", rule.Alert, of[1], err)
				}
			}
			for _, problem := range unknownLabels(labels, rule.Expr, rule.Annotations["summary"]) {
				t.Errorf("%s: %s", rule.Alert, problem)
			}
			alerts[rule.Alert] = true
		}
	}
	if len(alerts) < 10 {
		t.Errorf("there are only %d alerts", len(alerts))
	}
}

// TestVolumesOfSeveralComponents: what mounts a model leaves what other components mount.
func TestVolumesOfSeveralComponents(t *testing.T) {
	manifests, err := filepath.Abs(filepath.Join(root, "deploy", "k8s"))
	if err != nil {
		t.Fatal(err)
	}
	for _, components := range [][]string{{"servers", "gpu", "model-claim"}, {"servers", "model-claim", "gpu"}, {"servers", "gpu", "model-image"}} {
		folder := t.TempDir()
		relative, err := filepath.Rel(folder, manifests) // Kustomize takes no other
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: tandem\nresources:\n- %s/base\ncomponents:\n", relative)
		for _, name := range components {
			text += fmt.Sprintf("- %s/components/%s\n", relative, name)
		}
		if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := deploytest.Parse([]byte(render(t, folder)))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][]string{"tandem-prefill": {"kernels", "model"}, "tandem-decode": {"kernels", "model"}, "tandem-router": {"model", "state"}} {
			pod := m.Deployments[name].Spec.Template.Spec
			var volumes, mounts []string
			for _, v := range pod.Volumes {
				volumes = append(volumes, v.Name)
			}
			for _, v := range pod.Containers[0].VolumeMounts {
				mounts = append(mounts, v.Name)
			}
			slices.Sort(volumes)
			slices.Sort(mounts)
			if !slices.Equal(volumes, want) || !slices.Equal(mounts, want) {
				t.Errorf("%v: %s has the volumes %v, mounted %v; want %v", components, name, volumes, mounts, want)
			}
		}
	}
}
