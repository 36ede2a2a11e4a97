package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// Names in a Hugging Face directory.
const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
	weightsFile    = "model.safetensors"
	indexFile      = "model.safetensors.index.json"
)

// Bounds on the JSON files beside the weights.
const (
	maxConfigBytes = 4 << 20
	maxIndexBytes  = maxHeaderBytes
)

// readSmall reads a file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	file, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := boundedfile.ReadFrom(file, limit)
	if _, long := errors.AsType[*boundedfile.TooLongError](err); long {
		return nil, &Error{File: path, Problem: err.Error(), Remedy: "its content does not match its name: fetch it again"}
	}
	if err != nil {
		return nil, &Error{File: path, Problem: "cannot be read", Err: err}
	}
	return data, nil
}

// openRegular opens a regular file (a pipe would block) and says how long it is.
func openRegular(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		remedy := "make it readable"
		if errors.Is(err, fs.ErrNotExist) {
			remedy = "fetch the whole checkpoint"
		}
		return nil, 0, &Error{File: path, Problem: "cannot be read", Err: cause(err), Remedy: remedy}
	}
	if !info.Mode().IsRegular() {
		return nil, 0, &Error{File: path, Problem: "is not a regular file", Remedy: "fetch the checkpoint again"}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, &Error{File: path, Problem: "cannot be opened", Err: cause(err), Remedy: "make it readable"}
	}
	return file, info.Size(), nil
}

// cause takes the path out of an error whose path is in the message already.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// readSpec reads and merges the two configuration files.
func readSpec(dir string, opts Options) (Spec, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return Spec{}, &Error{File: dir, Problem: "no such model directory", Err: cause(err), Remedy: "name a directory with a config.json and model.safetensors"}
	}
	if !info.IsDir() {
		return Spec{}, &Error{File: dir, Problem: "is not a directory", Remedy: "name the directory that holds config.json and model.safetensors"}
	}
	path := filepath.Join(dir, configFile)
	data, err := readSmall(path, maxConfigBytes)
	if err != nil {
		return Spec{}, err
	}
	spec, err := parseConfig(path, data)
	if err != nil {
		return Spec{}, err
	}
	path = filepath.Join(dir, generationFile)
	if !boundedfile.Absent(path) {
		if data, err = readSmall(path, maxConfigBytes); err != nil {
			return Spec{}, err
		}
		if err := addGenerationConfig(&spec, path, data); err != nil {
			return Spec{}, err
		}
	}
	spec.Name = opts.Name
	if spec.Name == "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return Spec{}, fmt.Errorf("find the name of %s: %w", dir, err)
		}
		spec.Name = filepath.Base(absolute)
	}
	return spec, nil
}

// weightFiles says which files hold the weights.
type weightFiles struct {
	// root is the file that a tensor which is nowhere is missing from: the single
	// weights file or the index.
	root string
	// tensors maps the path of each file to the tensors that the index lists for
	// it; nil without an index.
	tensors map[string]map[string]struct{}
}

// paths lists the files in a fixed order.
func (w weightFiles) paths() []string { return slices.Sorted(maps.Keys(w.tensors)) }

// findWeights prefers the single file to an index, as Hugging Face's loader does.
func findWeights(dir string) (weightFiles, error) {
	single := filepath.Join(dir, weightsFile)
	if !boundedfile.Absent(single) {
		return weightFiles{root: single, tensors: map[string]map[string]struct{}{single: nil}}, nil
	}
	path := filepath.Join(dir, indexFile)
	if boundedfile.Absent(path) {
		remedy := "fetch the whole checkpoint"
		if _, err := os.Stat(filepath.Join(dir, "pytorch_model.bin")); err == nil {
			remedy = "convert pytorch_model.bin to safetensors"
		}
		return weightFiles{}, &Error{File: dir, Problem: "holds neither " + weightsFile + " nor " + indexFile, Remedy: remedy}
	}
	data, err := readSmall(path, maxIndexBytes)
	if err != nil {
		return weightFiles{}, err
	}
	tensors, err := parseIndex(dir, path, data)
	return weightFiles{root: path, tensors: tensors}, err
}

func parseIndex(dir, path string, data []byte) (map[string]map[string]struct{}, error) {
	f, err := parseFields(path, data)
	if err != nil {
		return nil, err
	}
	var names map[string]string
	err = json.Unmarshal(f.values["weight_map"], &names)
	switch {
	case !f.has("weight_map"):
		f.bad("weight_map", "is missing", remedyDownload)
	case err != nil:
		f.bad("weight_map", "does not map tensor names to file names", remedyDownload)
	case len(names) == 0:
		f.bad("weight_map", "is empty", remedyDownload)
	}
	if *f.err != nil {
		return nil, *f.err
	}
	files := map[string]map[string]struct{}{}
	for _, tensor := range slices.Sorted(maps.Keys(names)) {
		name := names[tensor]
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") {
			return nil, &Error{File: path, Tensor: tensor, Field: "weight_map",
				Problem: "lies in " + clip(name) + ", which is not the name of a file of this directory", Remedy: "do not trust this checkpoint: fetch it from its publisher"}
		}
		shard := filepath.Join(dir, name)
		if files[shard] == nil {
			if _, err := os.Stat(shard); err != nil {
				return nil, &Error{File: path, Tensor: tensor, Field: "weight_map", Problem: "lies in shard " + clip(name) + ", which cannot be read", Err: cause(err), Remedy: "fetch the missing shard"}
			}
			files[shard] = map[string]struct{}{}
		}
		files[shard][tensor] = struct{}{}
	}
	return files, nil
}
