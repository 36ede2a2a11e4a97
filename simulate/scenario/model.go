package scenario

import (
	"math"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// readModel reads what is served: a preset, the directory of a checkpoint, of which no
// weights are read, or a shape.
func readModel(top *section) (model.Spec, error) {
	node := top.take("model")
	if node == nil {
		return model.Spec{}, top.errorf("model", "the model is missing: add \"model: bench-8b\", or a directory with a config.json")
	}
	spec, err := specOf(top, node)
	if err != nil {
		return spec, err
	}
	spec.Digest = "simulated-" + spec.Name
	return spec, nil
}

func specOf(top *section, node *yaml.Node) (model.Spec, error) {
	if node.Kind != yaml.MappingNode {
		name, err := top.scalar("model", node)
		if err != nil {
			return model.Spec{}, err
		}
		return named(top, name)
	}
	s, err := top.doc.section(node, "model")
	if err != nil {
		return model.Spec{}, err
	}
	shape := model.Shape{Name: "model", RopeTheta: 10000}
	if name, err := s.text("name"); err != nil {
		return model.Spec{}, err
	} else if name != "" {
		shape.Name = name
	}
	for _, field := range []struct {
		key  string
		into *int
		most int
	}{
		{"layers", &shape.Layers, 1000}, {"hidden-size", &shape.HiddenSize, 1 << 17}, {"heads", &shape.Heads, 1024}, {"kv-heads", &shape.KVHeads, 1024},
		{"head-size", &shape.HeadSize, 1024}, {"ffn-size", &shape.FFNSize, 1 << 20}, {"vocab-size", &shape.VocabSize, 1 << 20}, {"context-tokens", &shape.ContextTokens, 1 << 20},
	} {
		is, err := s.integer(field.key, 1, field.most, field.into)
		if err != nil {
			return model.Spec{}, err
		}
		if !is && field.key != "head-size" && field.key != "kv-heads" && field.key != "ffn-size" {
			return model.Spec{}, s.errorf(field.key, "%q is missing: a shape needs layers, hidden-size, heads, vocab-size and context-tokens", "model."+field.key)
		}
	}
	if err := s.end(); err != nil {
		return model.Spec{}, err
	}
	if shape.KVHeads == 0 {
		shape.KVHeads = shape.Heads
	}
	if shape.HeadSize == 0 {
		shape.HeadSize = shape.HiddenSize / shape.Heads
	}
	if shape.FFNSize == 0 {
		shape.FFNSize = 4 * shape.HiddenSize
	}
	spec, err := shape.Spec()
	if err != nil {
		return spec, s.errorf("", "%w", err)
	}
	return spec, nil
}

// named is a preset or a directory.
func named(top *section, name string) (model.Spec, error) {
	preset, unknown := model.Preset(name)
	if unknown == nil {
		spec, err := preset.Spec()
		if err != nil {
			return spec, top.errorf("model", "%w", err)
		}
		return spec, nil
	}
	dir := top.doc.path(name)
	if _, err := os.Stat(dir); err != nil && !strings.ContainsRune(name, filepath.Separator) {
		known := func(yield func(string) bool) {
			for _, p := range model.Presets() {
				if !yield(p.Name) {
					return
				}
			}
		}
		if nearest, near := spelling.Nearest(name, known); near {
			return model.Spec{}, top.errorf("model", "there is no preset %q: did you mean %q?", name, nearest)
		}
		return model.Spec{}, top.errorf("model", "%w, or name a directory with a config.json", unknown)
	}
	spec, err := model.ReadConfig(dir)
	if err != nil {
		return spec, top.errorf("model", "%w", err)
	}
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	spec.Name, top.doc.modelDir = filepath.Base(dir), dir
	return spec, nil
}

// readProfile reads step times; nil if the section has none. They are a file of `tandem
// profile`, an entry of DistServe's, or the constants of the simulated engine's flags.
func readProfile(s *section, spec model.Spec) (*latency.Profile, error) {
	node := s.take("profile")
	if node == nil {
		return nil, nil
	}
	if node.Kind != yaml.MappingNode {
		file, err := s.scalar("profile", node)
		if err != nil {
			return nil, err
		}
		return s.profile(file, "", "", spec.Name)
	}
	p, err := s.doc.section(node, s.name+"profile")
	if err != nil {
		return nil, err
	}
	var texts [4]string
	for i, key := range []string{"file", "entry", "tensor-parallel", "model"} {
		if texts[i], err = p.text(key); err != nil {
			return nil, err
		}
	}
	step := defaultSteps()
	constants := false
	for key, into := range map[string]*float64{"base-ms": &step.BaseMs, "per-token-ms": &step.PerTokenMs, "per-context-token-ms": &step.PerContextTokenMs} {
		is, err := p.number(key, 0, math.Min(1e6, simulated.MaxSlow*100), into)
		if err != nil {
			return nil, err
		}
		constants = constants || is
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	file, entry, parallel, of := texts[0], texts[1], texts[2], texts[3]
	switch {
	case file == "" && !constants:
		return nil, p.errorf("", "%sprofile needs a file, or base-ms and per-token-ms", s.name)
	case file != "" && constants:
		return nil, p.errorf("file", "%sprofile has both a file and times of its own: keep one", s.name)
	case file == "" && entry+parallel+of != "":
		return nil, p.errorf("", "%sprofile has times of its own: entry, tensor-parallel and model go with a file", s.name)
	case file != "" && entry == "" && parallel != "":
		return nil, p.errorf("tensor-parallel", "\"%sprofile.tensor-parallel\" goes with an entry of DistServe's file: add \"entry\"", s.name)
	case entry != "" && of != "":
		return nil, p.errorf("model", "%sprofile has both an entry and a model: keep one", s.name)
	case file == "" && step.BaseMs+step.PerTokenMs+step.PerContextTokenMs == 0:
		return nil, p.errorf("", "%sprofile has steps that take no time: make one of its times more than 0", s.name)
	case file == "":
		return step.Profile(), nil
	}
	if of == "" {
		of = spec.Name
	}
	return s.profile(file, entry, parallel, of)
}

// profile reads a file of step times of a model.
func (s *section) profile(file, entry, parallel, of string) (*latency.Profile, error) {
	opened, err := os.Open(s.doc.path(file))
	if err != nil {
		return nil, s.errorf("profile", "read profile: %w", err)
	}
	defer opened.Close()
	var p *latency.Profile
	if entry != "" {
		if parallel == "" {
			parallel = "1"
		}
		p, err = latency.ReadDistServe(opened, entry, parallel)
	} else {
		p, err = latency.ReadProfile(opened)
	}
	if err != nil {
		return nil, s.errorf("profile", "%s: %w", file, err)
	}
	if name := p.Model; entry == "" && name != "" && name != of {
		return nil, s.errorf("profile", "%s is a profile of %s, but the model is %s: profile that with 'tandem profile', or say \"profile: {file: %s, model: %s}\" to use it all the same", file, name, of, file, name)
	}
	return p, nil
}
