package engine

// Staging is implemented by Pages that lend staging buffers: host memory that the device
// itself copies to and from. A Read into such a buffer, or a Write from one, needs no copy by
// the processor. Buffers are few: borrow one only for data that is soon sent or written.
type Staging interface {
	// Stage lends a buffer of at least the given size, with unknown contents. It does not
	// wait: if no buffer is free or large enough, it returns nil, and the caller uses its own
	// memory. The caller calls release once, when nothing uses the memory any more, even after
	// the engine was closed. Keep release for as long as the memory: a lost buffer returns
	// when release is garbage-collected. Safe for concurrent use.
	Stage(bytes int) (memory []byte, release func())
}
