package eventlog

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"time"
)

// Core records one state machine: it is the Recorder of its loop. Its methods are called
// under the loop's lock.
type Core struct {
	log    *Log
	codec  *Codec
	number uint64
	e      encoder
	now    time.Time
	// handling: the record of an event is in e, and its actions are not.
	handling bool
	funcs    uint64 // how many functions there were so far
}

// The kinds of cores that are recorded.
const (
	KindRouting = "routing"
	KindRequest = "request"
	KindWorker  = "worker"
)

// Begin begins to record a core, of a kind that the log has a codec for. It is to be made from
// the configuration that is returned, which equals the one that is given, but for functions:
// theirs write down what they answer while events are handled. Everything else that the core
// depends on has to be in its configuration or in events.
func Begin[C any](l *Log, kind string, config C) (core *Core, recorded C) {
	core = &Core{log: l, codec: l.options.Codecs[kind]}
	core.e.base = l.base
	l.mu.Lock()
	l.cores++
	core.number = l.cores
	l.mu.Unlock()
	core.e.buf = append(core.e.buf, recordBegin)
	core.e.uvarint(core.number)
	core.e.string(kind)
	core.e.uvarint(core.codec.schema)
	recorded, is := core.write(config).(C)
	if !is {
		recorded = config
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	core.put()
	return core, recorded
}

// write writes a value of an interface type, and returns it for the core: times are as they will
// be read, functions write down their calls, and all else is as it was, written or not.
func (c *Core) write(value any) any {
	v := reflect.ValueOf(&value).Elem()
	if c.codec.encodeInterface(&c.e, v); value == nil || c.e.err != nil {
		return value
	}
	return c.codec.liveInterface(c, v).Interface()
}

// listen returns a function that does what f does, the next one of those just written, and
// writes down its calls.
func (c *Core) listen(p *funcPlan, f reflect.Value) reflect.Value {
	number := c.funcs
	c.funcs++
	return reflect.MakeFunc(p.t, func(args []reflect.Value) []reflect.Value {
		results := f.Call(args)
		if c.handling {
			c.e.bool(true)
			c.e.uvarint(number)
			encodeAll(&c.e, p.in, args)
			encodeAll(&c.e, p.out, results)
		}
		return results
	})
}

// Event takes down an event that the state machine is about to take in, and returns what to
// give it.
func (c *Core) Event(now time.Time, event any) any {
	if c.log.ended.Load() {
		return event
	}
	c.e.buf, c.e.action = c.e.buf[:0], false
	c.now = now
	event = c.write(event)
	c.handling = true
	return event
}

// Actions takes down what the state machine did: a slice.
func (c *Core) Actions(actions any) {
	if !c.handling {
		return
	}
	c.handling = false
	c.e.bool(false)
	c.e.action = true
	c.codec.encodeActions(&c.e, actions)
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	// The head stands behind the rest until it is known: events of other cores may have
	// come since.
	at := len(c.e.buf)
	c.e.buf = append(c.e.buf, recordEvent)
	c.e.uvarint(c.number)
	c.e.buf = binary.AppendVarint(c.e.buf, int64(c.now.Sub(c.log.last)))
	c.log.last = c.now
	c.putSplit(at)
}

// encodeActions writes a slice of values of an interface type, and returns its length.
func (c *Codec) encodeActions(e *encoder, actions any) int {
	v := reflect.ValueOf(actions)
	e.uvarint(uint64(v.Len()))
	for i := range v.Len() {
		c.encodeInterface(e, v.Index(i))
	}
	return v.Len()
}

// End says that the state machine gets no more events.
func (c *Core) End() {
	if c.log.ended.Load() {
		return
	}
	c.e.buf = append(c.e.buf[:0], recordEnd)
	c.e.uvarint(c.number)
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.put()
}

// put adds the record in c.e. It requires log.mu.
func (c *Core) put() { c.putSplit(0) }

// putSplit adds the record of which the first part is in c.e from at on, and the rest before.
func (c *Core) putSplit(at int) {
	l := c.log
	switch {
	case l.ended.Load():
	case c.e.err != nil:
		l.stop(fmt.Sprintf("a value cannot be written: %v", c.e.err))
	case len(c.e.buf) > maxRecord:
		l.stop(fmt.Sprintf("one event takes %d bytes", len(c.e.buf)))
	default:
		l.record(c.e.buf[at:], c.e.buf[:at])
	}
}
