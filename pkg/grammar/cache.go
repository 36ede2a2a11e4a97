package grammar

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// maxCached is how many grammars a Cache keeps, maxCachedNodes the size of all of them together:
// nodes of programs and of the automata of expressions.
const (
	maxCached      = 32
	maxCachedNodes = 1 << 21
)

// Cache compiles grammars once, and keeps those that were used last.
type Cache struct {
	vocabulary *Vocabulary

	mu      sync.Mutex
	made    map[string]*cached
	counter uint64
}

type cached struct {
	once    sync.Once
	grammar *Grammar
	err     error
	used    uint64
	nodes   int // once it is compiled; under Cache.mu
}

// NewCache returns a cache of grammars for a vocabulary. Without one it is for checking: it keeps
// no grammars, but what is wrong with those that cannot be compiled.
func NewCache(v *Vocabulary) *Cache { return &Cache{vocabulary: v, made: make(map[string]*cached)} }

// Get is Compile, once for each source. Without a vocabulary the grammar is nil.
func (c *Cache) Get(source *inferencev1.StructuredOutput) (*Grammar, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(source)
	if err != nil {
		return nil, &Error{Field: "form", Problem: fmt.Sprintf("cannot be read: %v", err)}
	}
	one := c.entry(string(key))
	one.once.Do(func() {
		g, err := Compile(source, c.vocabulary)
		nodes := 1
		if err == nil && c.vocabulary != nil {
			one.grammar = g
			nodes = len(g.masks.program.nodes) + g.masks.program.lexemes.nodes
		}
		one.err = err
		c.compiled(one, nodes)
	})
	return one.grammar, one.err
}

// entry is the one of a source.
func (c *Cache) entry(key string) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counter++
	one := c.made[key]
	if one == nil {
		one = new(cached)
		c.made[key] = one
		c.evict(one)
	}
	one.used = c.counter
	return one
}

// compiled notes how large an entry is.
func (c *Cache) compiled(one *cached, nodes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.nodes = nodes
	c.evict(one)
}

// evict drops the grammars that were used the longest ago, but not one, until the others fit.
func (c *Cache) evict(but *cached) {
	for {
		oldest, total := "", 0
		for key, one := range c.made {
			total += one.nodes
			if one != but && (oldest == "" || one.used < c.made[oldest].used) {
				oldest = key
			}
		}
		if oldest == "" || len(c.made) <= maxCached && total <= maxCachedNodes {
			return
		}
		delete(c.made, oldest)
	}
}
