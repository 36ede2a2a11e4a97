package engine

// Staging is Pages that lend staging buffers: host memory that the device copies to and
// from by itself. A Read into such a buffer, and a Write from one, take no copy by the
// processor. There are few of them, so that they are for what is soon sent or written.
type Staging interface {
	// Stage lends a buffer of at least so many bytes, with unknown contents. It does not
	// wait: if none is free, or none is large enough, it returns nil, and the caller uses
	// memory of its own. The caller calls release once, when nobody uses the memory any more,
	// and may do so after the engine was closed. As long as it keeps the memory it also keeps
	// release: a buffer that was dropped comes back when release is garbage-collected. Safe
	// for concurrent use.
	Stage(bytes int) (memory []byte, release func())
}
