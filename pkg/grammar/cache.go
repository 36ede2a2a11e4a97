package grammar

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// maxCached is how many grammars a Cache keeps.
const maxCached = 64

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
}

// NewCache returns a cache of grammars for a vocabulary; nil: to check grammars only.
func NewCache(v *Vocabulary) *Cache { return &Cache{vocabulary: v, made: make(map[string]*cached)} }

// Get is Compile, once for each source.
func (c *Cache) Get(source *inferencev1.StructuredOutput) (*Grammar, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(source)
	if err != nil {
		return nil, &Error{Field: "form", Problem: fmt.Sprintf("cannot be read: %v", err)}
	}
	c.mu.Lock()
	c.counter++
	one := c.made[string(key)]
	if one == nil {
		if len(c.made) >= maxCached {
			c.evict()
		}
		one = new(cached)
		c.made[string(key)] = one
	}
	one.used = c.counter
	c.mu.Unlock()
	one.once.Do(func() { one.grammar, one.err = Compile(source, c.vocabulary) })
	return one.grammar, one.err
}

// evict drops the grammar that was used the longest ago.
func (c *Cache) evict() {
	oldest, at := "", c.counter
	for key, one := range c.made {
		if one.used < at {
			oldest, at = key, one.used
		}
	}
	delete(c.made, oldest)
}
