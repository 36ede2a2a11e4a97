package scenario

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/simulate"
)

// Scenario is a cluster and what happens to it.
type Scenario struct {
	doc         *document
	trafficLine int
	config      simulate.Config
	workers     []simulate.Worker
	pools       []*pool
	happenings  []happening
	ends        []simulate.Event // of what lasts for a time
	tokenize    func(text string, special bool) ([]int32, error)
	template    bool // ReadTemplate reads it
}

// load are the flags that say how much load there is. If the command line has one of them,
// the file's do not count.
var load = []string{"rate", "concurrency", "sweep", "find-max"}

// Read reads a scenario from a file. traffic are the flags of the load, of which the file
// sets those that were not set before.
func Read(file string, traffic *pflag.FlagSet) (*Scenario, error) {
	text, err := readText(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, text, traffic)
}

// ReadTemplate reads a scenario whose workers are examples for others, in any number. It ignores
// events and autoscale, and refuses what needs the workers of the file: stores, and pairs and
// links of hosts.
func ReadTemplate(file string, traffic *pflag.FlagSet) (*Scenario, error) {
	text, err := readText(file)
	if err != nil {
		return nil, err
	}
	return (&Scenario{template: true}).parse(file, text, traffic)
}

// Parse reads a scenario. Files that it names are relative to the folder of file.
func Parse(file string, text []byte, traffic *pflag.FlagSet) (*Scenario, error) {
	return new(Scenario).parse(file, text, traffic)
}

func (s *Scenario) parse(file string, text []byte, traffic *pflag.FlagSet) (*Scenario, error) {
	s.doc = &document{file: file, lines: map[string]int{}}
	top, err := s.doc.top(text)
	if err != nil {
		return nil, err
	}
	if s.template {
		top.take("events")
		top.take("autoscale")
	}
	for _, read := range []func(*section) error{
		knownKeys, s.readModel, s.readPools, s.readScales, s.readAutoscale, s.readRouters, s.readNetwork,
		func(top *section) error { return s.readTraffic(top, traffic) },
		func(top *section) error { return s.readEvents(top, traffic) },
		(*section).end,
	} {
		if err := read(top); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// topKeys are the keys of a scenario.
var topKeys = []string{"model", "profile", "block-tokens", "acceptance", "pools", "routers", "router", "network", "traffic", "seed", "events", "autoscale"}

// knownKeys refuses a key that is none of topKeys: one that is misspelled is otherwise said to
// be missing.
func knownKeys(top *section) error {
	for _, key := range top.order {
		if !slices.Contains(topKeys, key) {
			return top.unknown(key, slices.Values(topKeys))
		}
	}
	return nil
}

func (s *Scenario) readModel(top *section) (err error) {
	s.config.Spec, err = readModel(top)
	dir := s.doc.modelDir
	if dir == "" || err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, tokenizer.FileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	open := sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Open(dir) })
	s.tokenize = func(text string, special bool) ([]int32, error) {
		t, err := open()
		if err != nil {
			return nil, top.errorf("model", "%w", err)
		}
		return t.Encode(text, special), nil
	}
	return nil
}

// Tokenizer is the one beside the model, which is read when it is first called; nil: there is
// none.
func (s *Scenario) Tokenizer() func(text string, special bool) ([]int32, error) { return s.tokenize }

// maxRouters bounds the routers of a cluster.
const maxRouters = 64

func (s *Scenario) readRouters(top *section) error {
	s.config.Routers = 1
	if _, err := top.integer("routers", 1, maxRouters, &s.config.Routers); err != nil {
		return err
	}
	fs := newFlags()
	s.config.Routing.RegisterFlags(fs, "")
	s.config.Limits.RegisterFlags(fs, "")
	router, err := top.sub("router")
	if err != nil || router == nil {
		return err
	}
	lines := s.doc.lines
	defer func() { s.doc.lines = lines }()
	s.doc.lines = map[string]int{}
	if err := router.flags(fs, nil); err != nil {
		return err
	}
	for _, err := range []error{s.config.Routing.Validate(), s.config.Limits.Validate()} {
		if err != nil {
			return s.doc.place(err, router.line)
		}
	}
	return nil
}

// readTraffic sets flags, but not those that the command line has set.
func (s *Scenario) readTraffic(top *section, fs *pflag.FlagSet) error {
	given := map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) { given[f.Name] = f.Changed })
	seed := top.take("seed")
	section, err := top.sub("traffic")
	switch {
	case err != nil:
		return err
	case section == nil:
		return top.errorf("traffic", "the traffic is missing: add \"traffic: {rate: 10}\"")
	}
	s.trafficLine = section.line
	if section.keys["seed"] != nil {
		return section.errorf("seed", "\"traffic.seed\": the seed is of the whole simulation: write it at the top, without traffic")
	}
	for _, name := range load {
		if given[name] {
			for _, name := range load {
				given[name] = true
			}
			break
		}
	}
	if err := section.flags(fs, func(name string) bool { return given[name] }); err != nil {
		return err
	}
	if given["seed"] {
		return nil
	}
	value := "1"
	if seed != nil {
		if value, err = top.scalar("seed", seed); err != nil {
			return err
		}
	}
	if err := fs.Set("seed", value); err != nil || value == "0" {
		return top.errorf("seed", "\"seed\" is %s: want a whole number above 0", value)
	}
	return nil
}

// Place puts before an error of a flag where in the file the flag was set.
func (s *Scenario) Place(err error) error { return s.doc.place(err, s.trafficLine) }

// Spec is the model.
func (s *Scenario) Spec() model.Spec { return s.config.Spec }

// Workers is how many workers run at the start.
func (s *Scenario) Workers() (running int) {
	for i := range s.workers {
		if !s.workers[i].Down {
			running++
		}
	}
	return running
}

// Config is a cluster of the scenario, of which each run needs one of its own.
func (s *Scenario) Config(seed uint64) simulate.Config {
	c := s.config
	c.Seed = seed
	if c.Autoscale != nil {
		c.Autoscale = new(*c.Autoscale)
	}
	for i := range s.workers {
		w := s.workers[i]
		c.Workers = append(c.Workers, &w)
	}
	return c
}

// newFlags is a set of flags that prints nothing.
func newFlags() *pflag.FlagSet { return pflag.NewFlagSet("", pflag.ContinueOnError) }

// maxTime bounds the times of a scenario: no run is longer.
const maxTime = 24 * time.Hour
