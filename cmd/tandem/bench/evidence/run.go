package evidence

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

// Names returns the names of all sections.
func Names() (names []string) {
	for _, s := range Sections() {
		names = append(names, s.Name())
	}
	return names
}

// Named returns sections by name, in the order of the page; without names all.
func Named(names []string) ([]Section, error) {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(Sections(), func(s Section) bool { return len(names) > 0 && !slices.Contains(names, s.Name()) }), nil
}

// Run measures sections one after the other, each on all cores. It leaves out ratios whose denominator is 0.
func Run(ctx context.Context, sections []Section, o Options) ([]*Result, error) {
	var all []*Result
	for _, s := range sections {
		began := time.Now()
		r, err := s.Run(ctx, o)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name(), err)
		}
		r.Ratios = slices.DeleteFunc(r.Ratios, func(r Ratio) bool { return !r.defined() })
		o.nameCommands(s.Name(), r)
		r.Section, r.Title, r.WallSeconds = s.Name(), s.Title(), time.Since(began).Round(100*time.Millisecond).Seconds()
		o.say(fmt.Sprintf("%s took %.0f s", s.Name(), r.WallSeconds))
		all = append(all, r)
	}
	return all, nil
}

// nameCommands has each table of a section say what measures it again, unless it does.
func (o Options) nameCommands(section string, r *Result) {
	command := "tandem bench evidence --section " + section
	if o.Small {
		command += " --small"
	}
	if o.Long {
		command += " --long"
	}
	for i := range r.Tables {
		r.Tables[i].Command = cmp.Or(r.Tables[i].Command, command)
	}
	for i := range r.FromTraces {
		r.FromTraces[i].Command = command + " --traces DIR"
	}
}

// each runs do(0) to do(n-1), as many at a time as there are cores. After an error or the end
// of ctx it begins no others.
func each(ctx context.Context, n int, do func(i int) error) error {
	return parallel.Do(ctx, runtime.GOMAXPROCS(0), int64(n), func(i int64) error { return do(int(i)) }, func(int64) {})
}

// Check returns what is wrong with the options.
func (o Options) Check() error {
	for _, folder := range []string{o.Profiles, o.Traces} {
		if folder == "" {
			continue
		}
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			return fmt.Errorf("there is no folder %s: run it at the top of a checkout, or say where with --profiles and --traces", folder)
		}
	}
	return nil
}

// profile is the path of a file with step times.
func (o Options) profile(name string) string {
	path, err := filepath.Abs(filepath.Join(o.Profiles, name))
	if err != nil { // the working directory is gone; reading the file will fail too
		return name
	}
	return path
}
