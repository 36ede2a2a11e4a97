package rpc

import "context"

// IncomingTrace and OutgoingTrace are what every call passes.
func IncomingTrace(ctx context.Context) context.Context { return incomingTrace(ctx) }

// OutgoingTrace is outgoingTrace.
func OutgoingTrace(ctx context.Context) context.Context { return outgoingTrace(ctx) }
