package scenario

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/spelling"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/simulate"
)

// maxWorkers bounds the workers of a scenario.
const maxWorkers = 10000

// Routers are called routerName-1, routerName-2, …; hosts that workers of a pool share are called
// as the pool with hostSuffix, and numbered likewise.
const (
	routerName = "router"
	hostSuffix = "-host"
)

// pool is workers of one kind, called NAME-1, NAME-2, ….
type pool struct {
	name    string
	line    int
	count   int // in the file
	made    int // so far
	hosts   []string
	perHost int
	worker  simulate.Worker // but for its ID and Host
}

// defaultSteps are the step times of a simulated engine whose flags nobody changed.
func defaultSteps() latency.Model {
	var c simulated.Config
	c.RegisterFlags(newFlags())
	return c.StepTime
}

func (s *Scenario) readPools(top *section) error {
	shared, err := readProfile(top, s.config.Spec)
	if err != nil {
		return err
	}
	if shared == nil {
		shared = defaultSteps().Profile()
	}
	engine := newEngine()
	if block := top.take("block-tokens"); block != nil {
		text, err := top.scalar("block-tokens", block)
		if err != nil {
			return err
		}
		if engine.flags.Set("block-tokens", text) != nil {
			return top.errorf("block-tokens", "\"block-tokens\" is %s: want a whole number", text)
		}
		if err := engine.Validate(); err != nil {
			return top.errorf("block-tokens", "%w", err)
		}
	}
	s.config.BlockTokens = engine.BlockTokens
	if _, err := top.number("acceptance", simulated.LeastAcceptance, 1, &s.config.Acceptance); err != nil {
		return err
	}
	pools, err := top.sub("pools")
	switch {
	case err != nil:
		return err
	case pools == nil || len(pools.order) == 0:
		return top.errorf("pools", "there are no workers: add \"pools: {p: {role: prefill, count: 2}, d: {role: decode, count: 4}}\"")
	}
	for _, name := range pools.order {
		line := pools.at[name]
		if strings.ContainsAny(name, " \t*?[]/\\\"") || len(name) > 50 {
			return s.doc.errorf(line, "%q cannot be the name of a pool: use letters, digits and dashes", name)
		}
		if name == routerName {
			return s.doc.errorf(line, "%q cannot be the name of a pool: %s-1 and so on are the routers", name, name)
		}
		if of, is := strings.CutSuffix(name, hostSuffix); is && pools.keys[of] != nil {
			return s.doc.errorf(line, "%q cannot be the name of a pool beside %s: %s-1 and so on are hosts of %s", name, of, name, of)
		}
		section, err := pools.sub(name)
		if err != nil {
			return err
		}
		p, err := s.readPool(section, name, shared)
		if err != nil {
			return err
		}
		p.line = line
		s.pools = append(s.pools, p)
		for range p.count {
			s.add(p, false)
		}
		if len(s.workers) > maxWorkers {
			return s.doc.errorf(line, "%d workers are more than %d: make pools smaller", len(s.workers), maxWorkers)
		}
	}
	if !slices.ContainsFunc(s.workers, func(w simulate.Worker) bool { return w.Role == controlv1.Role_ROLE_DECODE }) {
		return s.doc.errorf(pools.line, "there is no decode worker: add a pool with \"role: decode\"")
	}
	return nil
}

// pool is the pool of that name.
func (s *Scenario) pool(name string) (*pool, error) {
	var known []string
	for _, p := range s.pools {
		if p.name == name {
			return p, nil
		}
		known = append(known, p.name)
	}
	return nil, fmt.Errorf("there is no pool %q: the pools are %s", name, strings.Join(known, ", "))
}

// add adds the next worker of a pool.
func (s *Scenario) add(p *pool, down bool) {
	number := p.made
	p.made++
	w := p.worker
	w.ID, w.Pool, w.Down = fmt.Sprintf("%s-%d", p.name, number+1), p.name, down
	switch {
	case len(p.hosts) > 0:
		w.Host = p.hosts[number%len(p.hosts)]
	case p.perHost > 1:
		w.Host = fmt.Sprintf("%s%s-%d", p.name, hostSuffix, number/p.perHost+1)
	default:
		w.Host = w.ID
	}
	s.workers = append(s.workers, w)
}

// engine is what a worker's engine is sized by, with the flags of live workers.
type engine struct {
	engines.Config
	flags *pflag.FlagSet
}

func newEngine() *engine {
	e := &engine{flags: newFlags()}
	e.RegisterFlags(e.flags)
	e.Name = engines.Simulated
	return e
}

func (s *Scenario) readPool(section *section, name string, shared *latency.Profile) (*pool, error) {
	p := &pool{name: name}
	w := &p.worker
	role, err := section.text("role")
	if err != nil {
		return nil, err
	}
	e, fs := newEngine(), newFlags()
	e.BlockTokens = s.config.BlockTokens
	for _, flag := range []string{"kv-memory", "max-batch-tokens", "max-sequences"} {
		fs.AddFlag(e.flags.Lookup(flag))
	}
	fs.DurationVar(&w.TransferLease, "transfer-lease", kvtransfer.DefaultLease, "")
	fs.IntVar(&w.TransferCreditBytes, "transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "")
	var speculation worker.Speculation
	switch role {
	case "prefill":
		w.Role = controlv1.Role_ROLE_PREFILL
		w.RegisterFlags(fs, "", role, worker.DefaultPrefillChunkTokens)
		fs.IntVar(&w.StorePuts, "store-puts", offload.DefaultPuts, "")
		fs.Float64Var(&w.FetchBandwidth, "fetch-bandwidth", offload.DefaultBandwidth, "")
	case storeRole:
		if s.template {
			return nil, section.errorf("role", "pool %s has block stores, which a plan knows nothing of: leave it out, or simulate the file", name)
		}
		return s.readStores(section, p, shared)
	case "decode":
		w.Role = controlv1.Role_ROLE_DECODE
		w.RegisterFlags(fs, "", role, worker.DefaultDecodeChunkTokens)
		speculation.RegisterFlags(fs)
	case "":
		if err := section.misspelt("role"); err != nil {
			return nil, err
		}
		fallthrough
	default:
		return nil, section.errorf("role", "the role of pool %s is %q: want prefill, decode or store", name, role)
	}
	if err := p.readPlaces(section); err != nil {
		return nil, err
	}
	if w.Profile, err = readProfile(section, s.config.Spec); err != nil {
		return nil, err
	}
	w.Profile = cmp.Or(w.Profile, shared)
	if _, err := section.number("slow", 1/simulated.MaxSlow, simulated.MaxSlow, &w.Slow); err != nil {
		return nil, err
	}
	w.Jitter = w.Profile.Jitter
	if _, err := section.number("jitter", 0, latency.MaxJitter, &w.Jitter); err != nil {
		return nil, err
	}
	lines := s.doc.lines
	defer func() { s.doc.lines = lines }()
	s.doc.lines = map[string]int{}
	if err := section.flags(fs, nil); err != nil {
		return nil, err
	}
	if err := e.Validate(); err != nil {
		return nil, s.doc.place(err, section.line)
	}
	if _, err := e.Size(s.config.Spec, 1, 0, memory.Left{Bytes: math.MaxInt64}); err != nil {
		return nil, s.doc.place(err, section.line)
	}
	if err := w.Limits.Validate("", e.BlockTokens); err != nil {
		return nil, s.doc.place(err, section.line)
	}
	if err := speculation.Validate(); err != nil {
		return nil, s.doc.place(err, section.line)
	}
	if w.MaxDrafts, err = s.drafts(section, name, w.Profile, speculation); err != nil {
		return nil, err
	}
	if w.StorePuts < 0 || w.FetchBandwidth < 0 {
		return nil, section.errorf("store-puts", "store-puts and fetch-bandwidth of pool %s must not be negative", name)
	}
	if err := p.checkTransfers(section); err != nil {
		return nil, err
	}
	w.Blocks, w.MaxBatchTokens, w.MaxSequences = e.SimulatedBlocks(s.config.Spec), e.MaxBatchTokens, e.MaxSequences
	return p, nil
}

// drafts is how many tokens of a sequence the workers of a pool draft for a step.
func (s *Scenario) drafts(section *section, name string, profile *latency.Profile, speculation worker.Speculation) (int, error) {
	verified := 0
	if len(profile.Verify) > 0 {
		verified = simulated.MaxDrafts
	}
	n, err := speculation.MaxDrafts(verified, false)
	switch {
	case speculation.Speculate == worker.SpeculateDraft:
		return 0, section.errorf("speculate", "pool %s has no draft model, since nothing is computed: write \"ngram\", and how often a draft token is right as \"acceptance\"", name)
	case err != nil:
		return 0, section.errorf("speculate", "pool %s drafts tokens, but its profile does not say how long it takes to verify them: measure it again with 'tandem profile', or leave out \"speculate\"", name)
	case n > 0 && s.config.Acceptance == 0:
		return 0, section.errorf("speculate", "pool %s drafts tokens, but nothing says how often a draft token is right: add \"acceptance: 0.7\" at the top", name)
	}
	return n, nil
}

// readPlaces reads how many workers a pool has, and where they are.
func (p *pool) readPlaces(section *section) (err error) {
	p.count = 1
	if _, err := section.integer("count", 0, maxWorkers, &p.count); err != nil {
		return err
	}
	if p.hosts, err = section.texts("hosts"); err != nil {
		return err
	}
	if _, err := section.integer("per-host", 1, maxWorkers, &p.perHost); err != nil {
		return err
	}
	if p.perHost > 0 && len(p.hosts) > 0 {
		return section.errorf("hosts", "pool %s has both hosts and per-host: keep one", p.name)
	}
	return nil
}

// checkTransfers checks what was read of transfers.
func (p *pool) checkTransfers(section *section) error {
	if p.worker.TransferLease < minLease {
		return section.errorf("transfer-lease", "\"%stransfer-lease\" is %v: want 1s or more", section.name, p.worker.TransferLease)
	}
	if err := kvtransfer.CheckCreditBytes(p.worker.TransferCreditBytes); err != nil {
		return section.errorf("transfer-credit-bytes", "\"%stransfer-credit-bytes\": %w", section.name, err)
	}
	return nil
}

// ids are the workers that names and patterns, such as d-*, mean.
func (s *Scenario) ids(section *section, key string, node *yaml.Node) ([]string, error) {
	var known []string
	for i := range s.workers {
		known = append(known, s.workers[i].ID)
	}
	return expand(section, key, node, known, "worker")
}

// hosts are those that names and patterns mean: hosts, or workers that stand for theirs.
func (s *Scenario) hosts(section *section, key string, node *yaml.Node) (simulate.Hosts, error) {
	var known []string
	of := map[string]string{}
	for i := range s.config.Routers {
		name := fmt.Sprintf("%s-%d", routerName, i+1)
		known, of[name] = append(known, name), name
	}
	for i := range s.workers {
		w := &s.workers[i]
		for _, name := range []string{w.Host, w.ID} {
			if of[name] == "" {
				known, of[name] = append(known, name), w.Host
			}
		}
	}
	names, err := expand(section, key, node, known, "host or worker")
	if err != nil {
		return nil, err
	}
	var all simulate.Hosts
	for _, name := range names {
		if host := of[name]; !slices.Contains(all, host) {
			all = append(all, host)
		}
	}
	return all, nil
}

// expand finds names among those that are known; a pattern may mean several.
func expand(section *section, key string, node *yaml.Node, known []string, what string) ([]string, error) {
	wanted, err := section.list(key, node)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, want := range wanted {
		found := false
		for _, name := range known {
			matches, err := path.Match(want, name)
			if err != nil {
				return nil, section.doc.errorf(node.Line, "%q: %q is not a pattern: write a name, or d-* for all that begin so", section.name+key, want)
			}
			if matches {
				found = true
				if !slices.Contains(all, name) {
					all = append(all, name)
				}
			}
		}
		if found {
			continue
		}
		if nearest, near := spelling.Nearest(want, slices.Values(known)); near {
			return nil, section.doc.errorf(node.Line, "%q: there is no %s %q: did you mean %q?", section.name+key, what, want, nearest)
		}
		return nil, section.doc.errorf(node.Line, "%q: there is no %s %q: the pools have workers such as %s", section.name+key, what, want, known[len(known)-1])
	}
	return all, nil
}
