package deploytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Settings ask the real binary what it makes of an environment.
type Settings struct {
	binary string
	flags  map[string]bool // of `tandem serve`
}

// NewSettings builds the binary of the checkout at root into folder.
func NewSettings(root, folder string) (*Settings, error) {
	s := &Settings{binary: filepath.Join(folder, "tandem"), flags: map[string]bool{}}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", s.binary, "./cmd/tandem")
	build.Dir = root
	// This module is tested with GOWORK=off, that one is built in its workspace.
	build.Env = append(build.Environ(), "GOWORK=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build tandem: %w: %s", err, out)
	}
	values, err := s.print(nil)
	for name := range values {
		s.flags[name] = true
	}
	return s, err
}

// print is what `tandem serve` would run with.
func (s *Settings) print(environment []string, arguments ...string) (map[string]struct{ Source string }, error) {
	command := exec.Command(s.binary, append([]string{"config", "print", "serve", "--json"}, arguments...)...)
	command.Env = append([]string{}, environment...)
	out, err := command.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, fmt.Errorf("%s", strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, err
	}
	values := map[string]struct{ Source string }{}
	err = json.Unmarshal(out, &values)
	return values, err
}

// flagOf is the flag that a variable sets; empty if it is not one of tandem's.
func flagOf(variable string) string {
	name, is := strings.CutPrefix(variable, "TANDEM_")
	if !is {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}

// Check says which variables of the parts are no flags, and which values are none
// that the program takes.
func (s *Settings) Check(m *Manifests) []error {
	r := &report{}
	for _, p := range m.parts() {
		var environment []string
		for name, value := range m.environment(p) {
			if flag := flagOf(name); flag != "" && !s.flags[flag] {
				r.add("%s: %s is no flag of tandem serve", p.name, name)
				continue
			}
			environment = append(environment, name+"="+value)
		}
		if _, err := s.print(environment, p.Spec.Containers[0].Args[1:]...); err != nil {
			r.add("%s: %w", p.name, err)
		}
	}
	return r.problems
}

// CheckCompose says which variables in the environments of a compose file are no
// flags. Values are not looked at: they may be made of other variables.
func (s *Settings) CheckCompose(text []byte) []error {
	var file any
	if err := yaml.Unmarshal(text, &file); err != nil {
		return []error{fmt.Errorf("compose: %w", err)}
	}
	r := &report{}
	var found []string
	var walk func(at string, node any)
	walk = func(at string, node any) {
		switch node := node.(type) {
		case map[string]any:
			for key, value := range node {
				if strings.HasSuffix(at, "environment") && flagOf(key) != "" {
					found = append(found, key)
				}
				// With TLS operators are asked for their certificates.
				if address, is := value.(string); is && key == "TANDEM_CONTROL" && node["TANDEM_TLS_CERT"] == nil {
					checkControl(r, "compose", address)
				}
				walk(key, value)
			}
		case []any:
			for _, item := range node {
				walk(at, item)
			}
		}
	}
	walk("", file)
	slices.Sort(found)
	for _, name := range slices.Compact(found) {
		if !s.flags[flagOf(name)] {
			r.add("compose: %s is no flag of tandem serve", name)
		}
	}
	if len(found) == 0 {
		r.add("compose: no variable of tandem is set")
	}
	return r.problems
}
