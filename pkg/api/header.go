package api

// Keys of gRPC's metadata and headers of HTTP; the trace's stand in messages of NATS too.
const (
	HeaderRequestID   = "x-request-id"
	HeaderTraceParent = "traceparent" // W3C Trace Context
	HeaderTraceState  = "tracestate"  // W3C Trace Context
	// HeaderAskedByRouter marks what a router asks another for a client: that one asks no more.
	HeaderAskedByRouter = "x-tandem-asked-by-router"
)

// UnixScheme begins the addresses of Unix sockets: "unix:///path".
const UnixScheme = "unix://"
