// Package modeldir finds the directory of the model that a command serves: by default that of
// the bundled model.
//
// Commands of the binary and the suite that runs them may import it. It owns
// nothing and starts no goroutine.
package modeldir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Environment is the variable that names a model's directory.
const Environment = "TANDEM_MODEL"

// bundled is where the bundled model lies below a checkout or an installation.
var bundled = filepath.Join("models", "fable")

// Places are where Find looks. An empty place is left out.
type Places struct {
	Environment string
	// WorkingDir is where the search through the parents begins.
	WorkingDir string
	// Executable is the path of the running binary, symbolic links resolved.
	Executable string
}

// Find returns the directory that flag names, else the one that TANDEM_MODEL
// names, else models/fable in the working directory or one of its parents, else
// beside the executable: models/fable, ../models/fable, ../share/tandem/models/fable. A
// directory that was named but holds no model is an error, never passed over.
func Find(flag string) (string, error) {
	places := Places{Environment: os.Getenv(Environment)}
	if dir, err := os.Getwd(); err == nil {
		places.WorkingDir = dir
	}
	if file, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(file); err == nil {
			file = resolved
		}
		places.Executable = file
	}
	return places.Find(flag)
}

// Find is the package's Find with the places given.
func (p Places) Find(flag string) (string, error) {
	if flag != "" {
		return Named(flag, "--model")
	}
	if p.Environment != "" {
		return Named(p.Environment, Environment)
	}
	for _, dir := range p.candidates() {
		if check(dir) == nil {
			return dir, nil
		}
	}
	return "", errors.New("no model found: pass --model DIR or set " + Environment +
		" to a directory with config.json, tokenizer.json and safetensors files (" + bundled +
		" is neither in the working directory or a parent of it, nor beside the executable)")
}

func (p Places) candidates() []string {
	var dirs []string
	if p.WorkingDir != "" {
		for dir := filepath.Clean(p.WorkingDir); ; dir = filepath.Dir(dir) {
			dirs = append(dirs, filepath.Join(dir, bundled))
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if p.Executable != "" {
		beside := filepath.Dir(p.Executable)
		prefix := filepath.Dir(beside)
		dirs = append(dirs, filepath.Join(beside, bundled), filepath.Join(prefix, bundled), filepath.Join(prefix, "share", "tandem", bundled))
	}
	return dirs
}

// Named is dir, or an error if it holds no model. by is what names it, for people.
func Named(dir, by string) (string, error) {
	if err := check(dir); err != nil {
		return "", fmt.Errorf("%s names %s, which holds no model: %w: pass a directory with config.json, tokenizer.json and safetensors files", by, dir, err)
	}
	return dir, nil
}

// check reports why dir is no model's directory. Whether the model in it can be
// served is for those to say who read it.
func check(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (Tandem downloads nothing)", reason(err))
	}
	if err != nil {
		return reason(err)
	}
	if !info.IsDir() && isGGUF(dir) {
		return errors.New("it is a GGUF file, which Tandem does not read")
	}
	if !info.IsDir() {
		return errors.New("it is a file, not a directory")
	}
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		if entries, _ := os.ReadDir(dir); slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isGGUF(e.Name()) }) {
			return errors.New("it has no config.json, but a GGUF file, which Tandem does not read")
		}
		return fmt.Errorf("config.json: %w", reason(err))
	}
	return nil
}

func isGGUF(name string) bool { return strings.EqualFold(filepath.Ext(name), ".gguf") }

// reason is an error without the path, which the message names already.
func reason(err error) error {
	if path, is := errors.AsType[*os.PathError](err); is {
		return path.Err
	}
	return err
}
