package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// The PTX is kept as gzip makes it smaller: a tenth of its size, in every program that has
// it.
//
//go:embed ptx
var compiled embed.FS

// The folders of ptx, by the oldest capability that they are for, times 10. What is in
// target90a is for 9.0 alone.
const (
	target80  = "sm_80"
	target90  = "sm_90"
	target90a = "sm_90a"
)

// getter is a kernel by name, as in fmt.Sprintf and without its tdm_, whose blocks have so
// many bytes of dynamic shared memory.
type getter func(shared int, format string, args ...any) kernel

// load hands a device the files of the kernels that find asks for, each once. find is called
// twice: first for nothing, to know which they are, so that the driver compiles files beside
// each other.
func load(device *driver.Device, find func(getter)) (modules []*driver.Module, err error) {
	capability := device.Info().Capability
	files, err := filesOf(capability)
	if err != nil {
		return nil, err
	}
	var wanted []string
	var errs []error
	number := map[string]int{} // of a wanted file
	find(func(_ int, format string, args ...any) kernel {
		name := nameOf(format, args)
		file, ok := files[name]
		if !ok {
			errs = append(errs, fmt.Errorf("kernel %s is not part of this program: run 'make kernels'", name))
			return kernel{}
		}
		if _, known := number[file]; !known {
			number[file] = len(wanted)
			wanted = append(wanted, file)
		}
		return kernel{}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if modules, err = loadFiles(device, wanted); err != nil {
		return nil, err
	}
	find(func(shared int, format string, args ...any) kernel {
		name := nameOf(format, args)
		f, err := modules[number[files[name]]].Function(name)
		allowed := shared
		if err == nil && capability >= 90 {
			allowed = spreadMost(shared, device.Info())
			err = f.AllowEarly()
		}
		if err == nil {
			err = f.AllowShared(allowed)
		}
		errs = append(errs, err)
		return kernel{f, shared}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, unload(modules))
	}
	return modules, nil
}

func nameOf(format string, args []any) string { return "tdm_" + fmt.Sprintf(format, args...) }

// loadFiles loads files, as many at once as there are processors. All of them, or none.
func loadFiles(device *driver.Device, files []string) ([]*driver.Module, error) {
	modules, errs := make([]*driver.Module, len(files)), make([]error, len(files))
	var loading errgroup.Group
	loading.SetLimit(runtime.GOMAXPROCS(0))
	for i, file := range files {
		loading.Go(func() error {
			ptx, err := readPTX(file)
			if err == nil {
				modules[i], err = device.Load(ptx)
			}
			if err != nil {
				errs[i] = fmt.Errorf("kernels %s: %w", path.Base(file), err)
			}
			return nil
		})
	}
	if err := errors.Join(append(errs, loading.Wait())...); err != nil {
		return nil, errors.Join(err, unload(modules))
	}
	return modules, nil
}

// unload takes modules from the driver.
func unload(modules []*driver.Module) error {
	var errs []error
	for _, m := range modules {
		if m != nil {
			errs = append(errs, m.Unload())
		}
	}
	return errors.Join(errs...)
}

// filesOf says in which file each kernel is that a capability has, by name.
func filesOf(capability int) (map[string]string, error) {
	switch {
	case capability == 90:
		return files90a()
	case capability > 90:
		return files90()
	default:
		return files80()
	}
}

var (
	files80  = sync.OnceValues(func() (map[string]string, error) { return readNames(target80) })
	files90  = sync.OnceValues(func() (map[string]string, error) { return readNames(target90) })
	files90a = sync.OnceValues(func() (map[string]string, error) { return readNames(target90, target90a) })
)

func readNames(targets ...string) (map[string]string, error) {
	var files []string
	for _, target := range targets {
		some, err := fs.Glob(compiled, path.Join("ptx", target, "*.ptx.gz"))
		if err != nil {
			return nil, err
		}
		files = append(files, some...)
	}
	of := map[string]string{}
	for _, file := range files {
		ptx, err := readPTX(file)
		if err != nil {
			return nil, err
		}
		for _, name := range entries(ptx) {
			of[name] = file
		}
	}
	return of, nil
}

func readPTX(file string) ([]byte, error) {
	packed, err := compiled.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	ptx, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return ptx, r.Close()
}
