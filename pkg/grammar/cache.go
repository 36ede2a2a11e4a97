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

// maxCached is how many sources a Cache knows, maxCachedBytes what is kept of all of them together,
// about.
const (
	maxCached      = 1 << 12
	maxCachedBytes = 256 << 20
)

// MaxWaiting bounds the calls that wait for grammars, or compile them. A large one takes some 10 ms to compile, an
// adversarial one a second.
const MaxWaiting = 256

// ErrBusy is why Get refuses while too many grammars are being compiled.
var ErrBusy = errors.New("too many new forms of outputs are being compiled: try again, or use fewer different ones")

// Cache compiles grammars once, and keeps those that were used last. It compiles as many at a time
// as there are processors.
type Cache struct {
	vocabulary *Vocabulary
	places     chan struct{} // a place for each compilation
	waiting    chan struct{} // for each call that compiles, or waits to do so or for another call

	mu    sync.Mutex
	made  map[sourceKey]*list.Element // of used
	used  list.List                   // of *cached; the first was used last
	bytes int                         // of all in used
	most  int                         // bytes
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

	bytes int // that it takes; under Cache.mu
}

// entryBytes is what a source takes beside its grammar or error.
const entryBytes = 512

// NewCache returns a cache of grammars for a vocabulary. Without one it is for checking: it keeps
// of grammars what they ignore, or what is wrong with those that cannot be compiled.
func NewCache(v *Vocabulary) *Cache {
	return &Cache{
		vocabulary: v, made: make(map[sourceKey]*list.Element), most: maxCachedBytes,
		places: make(chan struct{}, runtime.GOMAXPROCS(0)), waiting: make(chan struct{}, MaxWaiting),
	}
}

// Get is Compile, once for each source. Without a vocabulary the grammar has Ignored alone. It waits for a
// place to compile, or for another call that compiles the same source. If ctx ends meanwhile, or while it
// compiles, it returns the error of ctx. It is ErrBusy if too many calls wait.
func (c *Cache) Get(ctx context.Context, source *inferencev1.StructuredOutput) (*Grammar, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(source)
	if err != nil {
		return nil, &Error{Field: "form", Problem: fmt.Sprintf("cannot be read: %v", err)}
	}
	one := c.entry(sha256.Sum256(text))
	if one.compiled() {
		return one.grammar, one.err
	}
	select {
	case c.waiting <- struct{}{}:
		defer func() { <-c.waiting }()
	default:
		return nil, ErrBusy
	}
	if err := wait(ctx, one.turn); err != nil {
		return nil, err
	}
	defer func() { <-one.turn }()
	if one.compiled() {
		return one.grammar, one.err
	}
	if err := wait(ctx, c.places); err != nil {
		return nil, err
	}
	defer func() { <-c.places }()
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

// entry is the one of a source.
func (c *Cache) entry(key sourceKey) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.made[key]; at != nil {
		c.used.MoveToFront(at)
		return at.Value.(*cached) //nolint:errcheck // it has nothing else
	}
	one := &cached{key: key, turn: make(chan struct{}, 1), done: make(chan struct{})}
	c.made[key] = c.used.PushFront(one)
	c.takes(one, entryBytes)
	return one
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

// takes says how many bytes an entry takes, which is in use, and drops those that were used the
// longest ago until all fit. One that was dropped does not count: only those who still use it have it.
func (c *Cache) takes(one *cached, bytes int) {
	kept := c.made[one.key]
	if kept == nil || kept.Value != one {
		return
	}
	c.used.MoveToFront(kept)
	c.bytes += bytes - one.bytes
	one.bytes = bytes
	for c.used.Back() != kept && (len(c.made) > maxCached || c.bytes > c.most) {
		oldest := c.used.Remove(c.used.Back()).(*cached) //nolint:errcheck // it has nothing else
		delete(c.made, oldest.key)
		c.bytes -= oldest.bytes
	}
}
