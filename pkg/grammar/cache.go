package grammar

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// maxCached is how many sources a Cache knows beside those in use, maxCachedBytes what all of them may
// take together, about, until no more are compiled while they are in use.
const (
	maxCached      = 1 << 12
	maxCachedBytes = 256 << 20
)

// MaxWaiting bounds the calls that wait for grammars, or compile them; half of them may be of one tenant. A large
// one takes some 10 ms to compile, an adversarial one a second.
const MaxWaiting = 256

// ErrBusy is why Get refuses while too many grammars are being compiled, or those in use take too much
// memory.
var ErrBusy = errors.New("too many different forms of outputs are asked for: try again, or use fewer different ones")

// Cache compiles grammars once, and keeps those that are in use and those that were used last. It compiles as
// many at a time as there are processors, of one tenant half as many.
type Cache struct {
	vocabulary *Vocabulary
	places     chan struct{} // a place for each compilation

	mu      sync.Mutex
	made    map[sourceKey]*cached
	idle    list.List // of *cached that nobody uses; the first was used last
	bytes   int       // of all in made
	most    int       // bytes
	tenants map[string]*tenant
	waiting int // of all tenants
}

// tenant is one with calls that wait.
type tenant struct {
	waiting int
	places  chan struct{} // as Cache.places
}

// sourceKey is the SHA-256 of a source, which may be long.
type sourceKey [sha256.Size]byte

type cached struct {
	key  sourceKey
	turn chan struct{} // held by the call that compiles it
	done chan struct{} // closed once grammar and err are set
	// Once it is compiled:
	grammar *Grammar
	err     error

	// Under Cache.mu:
	bytes int            // that it takes
	users map[string]int // uses by each tenant
	at    *list.Element  // of idle, while nobody uses it
}

// entryBytes is what a source takes beside its grammar or error.
const entryBytes = 512

// NewCache returns a cache of grammars for a vocabulary. Without one it is for checking: it keeps
// of grammars what they ignore, or what is wrong with those that cannot be compiled.
func NewCache(v *Vocabulary) *Cache {
	return &Cache{
		vocabulary: v, made: make(map[sourceKey]*cached), most: maxCachedBytes,
		places: make(chan struct{}, runtime.GOMAXPROCS(0)), tenants: make(map[string]*tenant),
	}
}

// Get is Compile, once for each source. The grammar counts as used by the tenant, with the memory that it takes,
// until release is called. Without a vocabulary it has Ignored alone.
//
// Get waits for a place to compile, or for another call that compiles the same source. If ctx ends meanwhile, or
// while it compiles, it returns the error of ctx. It is ErrBusy if too many calls wait, all together or of the
// tenant, or if a new grammar finds too much memory in use.
func (c *Cache) Get(ctx context.Context, tenant string, source *inferencev1.StructuredOutput) (g *Grammar, release func(), err error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(source)
	if err != nil {
		return nil, nil, &Error{Field: "form", Problem: fmt.Sprintf("cannot be read: %v", err)}
	}
	one := c.use(sha256.Sum256(text), tenant)
	defer func() {
		if release == nil { // also when it panics
			c.leave(one, tenant)
		}
	}()
	if g, err = c.grammar(ctx, tenant, source, one); err != nil {
		return nil, nil, err
	}
	return g, sync.OnceFunc(func() { c.leave(one, tenant) }), nil
}

// grammar is that of an entry, which it compiles if need be.
func (c *Cache) grammar(ctx context.Context, tenant string, source *inferencev1.StructuredOutput, one *cached) (*Grammar, error) {
	if one.compiled() {
		return one.grammar, one.err
	}
	of, err := c.begin(tenant)
	if err != nil {
		return nil, err
	}
	defer c.end(tenant, of)
	// The source's turn comes last: else who waits for a place of another tenant would wait with it. So calls for
	// a source that another one compiles have places meanwhile.
	taken := [...]chan struct{}{of.places, c.places, one.turn}
	for i, places := range taken {
		if err := wait(ctx, places); err != nil {
			free(taken[:i])
			return nil, err
		}
	}
	defer free(taken[:])
	if one.compiled() {
		return one.grammar, one.err
	}
	g, err := Compile(ctx, source, c.vocabulary)
	if _, wrong := errors.AsType[*Error](err); err != nil && !wrong {
		return nil, err // another call may have more time
	}
	switch {
	case err != nil:
	case c.vocabulary == nil:
		g = &Grammar{ignored: g.ignored}
	default:
		g.Constrain(nil).Prepare(nil) // here, and not in the step of the first draw
	}
	c.complete(one, g, err)
	return one.grammar, one.err
}

// compiled says whether the grammar, or what is wrong with it, is known.
func (c *cached) compiled() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait takes a place.
func wait(ctx context.Context, places chan<- struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// free gives places back.
func free(places []chan struct{}) {
	for _, p := range places {
		<-p
	}
}

// use is the entry of a source, with one use more.
func (c *Cache) use(key sourceKey, tenant string) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.made[key]
	if one == nil {
		one = &cached{key: key, turn: make(chan struct{}, 1), done: make(chan struct{}), users: make(map[string]int)}
		c.made[key] = one
		c.takes(one, entryBytes)
	}
	if one.at != nil {
		c.idle.Remove(one.at)
		one.at = nil
	}
	one.users[tenant]++
	return one
}

// leave ends a use.
func (c *Cache) leave(one *cached, tenant string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.users[tenant]--; one.users[tenant] == 0 {
		delete(one.users, tenant)
	}
	switch {
	case len(one.users) > 0:
	case one.compiled():
		one.at = c.idle.PushFront(one)
		c.drop()
	default:
		delete(c.made, one.key)
		c.bytes -= one.bytes
	}
}

// begin takes in a call that is to compile, until end.
func (c *Cache) begin(name string) (*tenant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.tenants[name]
	if of == nil {
		of = &tenant{places: make(chan struct{}, max(cap(c.places)/2, 1))}
	}
	if c.waiting >= MaxWaiting || of.waiting >= MaxWaiting/2 {
		return nil, ErrBusy
	}
	if all, own := c.inUse(name); all > c.most || own > c.most/2 {
		return nil, fmt.Errorf("%w; those of outputs that are being generated take %d MiB together, %d of your own", ErrBusy, all>>20, own>>20)
	}
	c.tenants[name] = of
	of.waiting++
	c.waiting++
	return of, nil
}

func (c *Cache) end(name string, of *tenant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	if of.waiting--; of.waiting == 0 {
		delete(c.tenants, name)
	}
}

// inUse is how many bytes the grammars in use take, and those in use by one tenant.
func (c *Cache) inUse(tenant string) (all, own int) {
	if c.bytes <= c.most/2 {
		return 0, 0 // within all limits
	}
	for _, one := range c.made {
		if one.at == nil {
			all += one.bytes
		}
		if one.users[tenant] > 0 {
			own += one.bytes
		}
	}
	return all, own
}

// complete completes an entry. Its grammar grows while it is used.
func (c *Cache) complete(one *cached, g *Grammar, err error) {
	one.grammar, one.err = g, err
	if err != nil {
		c.resize(one, int64(len(err.Error())))
	} else {
		g.resized = func(bytes int64) { c.resize(one, bytes) }
		c.resize(one, g.size)
	}
	close(one.done)
}

// resize says how many bytes the grammar or the error of an entry takes now.
func (c *Cache) resize(one *cached, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes(one, entryBytes+int(bytes))
}

// takes says how many bytes an entry takes. One that was dropped does not count.
func (c *Cache) takes(one *cached, bytes int) {
	if c.made[one.key] != one {
		return
	}
	c.bytes += bytes - one.bytes
	one.bytes = bytes
	c.drop()
}

// drop drops entries that nobody uses, those that were used the longest ago first, until the others fit. A single
// entry stays.
func (c *Cache) drop() {
	for c.idle.Len() > 0 && len(c.made) > 1 && (c.idle.Len() > maxCached || c.bytes > c.most) {
		oldest := c.idle.Remove(c.idle.Back()).(*cached) //nolint:errcheck // it has nothing else
		delete(c.made, oldest.key)
		c.bytes -= oldest.bytes
	}
}
