package api

// ErrorDomain is the domain of every ErrorInfo that Tandem makes.
const ErrorDomain = "tandem"

// Reasons of errors, in the ErrorInfo of a gRPC status. Each constant is named like
// its value. Behind it stand the status codes that it comes with and whether another
// try may help: "again" as soon as what the comment says has changed, which RetryInfo
// foretells where the status has one; "elsewhere" at another server now; "no" means
// not as the call is.
const (
	// Any server, before its service sees the call or instead of its answer.

	ReasonInvalidField          = "INVALID_FIELD"           // INVALID_ARGUMENT, no: BadRequest names the field
	ReasonContextLengthExceeded = "CONTEXT_LENGTH_EXCEEDED" // INVALID_ARGUMENT, no: the prompt, or it and max_tokens, do not fit into the model's context
	ReasonConstraintEffort      = "CONSTRAINT_EFFORT"       // INVALID_ARGUMENT, no: finding the tokens that an output constraint allows took all the work that one output may
	ReasonReceiveMemory         = "RECEIVE_MEMORY"          // RESOURCE_EXHAUSTED or UNAVAILABLE, again: what is being received fills its memory
	ReasonReceiveTimeout        = "RECEIVE_TIMEOUT"         // DEADLINE_EXCEEDED, again: the request came too slowly
	ReasonNotRead               = "NOT_READ"                // RESOURCE_EXHAUSTED, again: the client does not read its answer
	ReasonNoCertificate         = "NO_CERTIFICATE"          // UNAUTHENTICATED, no: only parts of the mesh may call it, and operators, by their certificates
	ReasonWrongRole             = "WRONG_ROLE"              // PERMISSION_DENIED, no: the certificate is that of a role that may not call it
	ReasonPanic                 = "PANIC"                   // INTERNAL, no: a bug of the server

	// A router to its clients.

	ReasonNoCredentials      = "NO_CREDENTIALS"      // UNAUTHENTICATED, no: none were sent
	ReasonInvalidCredentials = "INVALID_CREDENTIALS" // UNAUTHENTICATED, no: unknown, expired or revoked
	ReasonScopeMissing       = "SCOPE_MISSING"       // PERMISSION_DENIED, no: the credentials are not for this
	ReasonKeysUnknown        = "KEYS_UNKNOWN"        // UNAVAILABLE, again: the router has just started and etcd has not answered it
	ReasonTenantQuota        = "TENANT_QUOTA"        // RESOURCE_EXHAUSTED, again: the tenant has used what its credentials allow

	ReasonTenantLimit     = "TENANT_LIMIT"     // RESOURCE_EXHAUSTED, again: the tenant has as many requests as it may
	ReasonQueueFull       = "QUEUE_FULL"       // RESOURCE_EXHAUSTED, again: too many wait; a worker says it too, then also elsewhere
	ReasonQueueTimeout    = "QUEUE_TIMEOUT"    // RESOURCE_EXHAUSTED, again: no worker was free in time
	ReasonSLOUnattainable = "SLO_UNATTAINABLE" // RESOURCE_EXHAUSTED, again: the request's bounds cannot be met now
	ReasonNoWorkers       = "NO_WORKERS"       // UNAVAILABLE, again: no worker serves the model
	ReasonRetryBudget     = "RETRY_BUDGET"     // UNAVAILABLE, again: a worker failed, and there were as many retries as may be
	ReasonWorkerLost      = "WORKER_LOST"      // UNAVAILABLE, again: workers failed, and no other is left or no other attempt
	ReasonKVUnreachable   = "KV_UNREACHABLE"   // UNAVAILABLE, again: no KV gets from the prefill to the decode worker
	ReasonNeverFits       = "NEVER_FITS"       // INVALID_ARGUMENT, no: no worker has so many KV blocks; clients get INVALID_FIELD
	ReasonDeadline        = "DEADLINE"         // DEADLINE_EXCEEDED, no: the request's own deadline
	ReasonUnread          = "UNREAD"           // RESOURCE_EXHAUSTED, again: answers that clients do not read fill their memory
	ReasonVectorMemory    = "VECTOR_MEMORY"    // RESOURCE_EXHAUSTED, again: the vectors of other calls fill their memory
	ReasonTooManyReaders  = "TOO_MANY_READERS" // RESOURCE_EXHAUSTED, again: too many resume this request at once
	ReasonClientGone      = "CLIENT_GONE"      // CANCELLED, no
	ReasonRouterShutdown  = "ROUTER_SHUTDOWN"  // UNAVAILABLE, elsewhere: the router ends
	ReasonDuplicate       = "DUPLICATE"        // INTERNAL, no: a request of this id waits or runs
	ReasonInternal        = "INTERNAL"         // any code, no: an error that has no reason of its own
	ReasonModelNotFound   = "MODEL_NOT_FOUND"  // NOT_FOUND, no

	// A router to its operators.

	ReasonRequestNotFound = "REQUEST_NOT_FOUND" // NOT_FOUND, no: there is no such request; with UNAVAILABLE, again: the router has just forgotten it
	ReasonWorkerNotFound  = "WORKER_NOT_FOUND"  // NOT_FOUND, no
	ReasonKeyNotFound     = "KEY_NOT_FOUND"     // NOT_FOUND, no
	ReasonKeyExists       = "KEY_EXISTS"        // ALREADY_EXISTS, no: another key has this id
	ReasonTooManyKeys     = "TOO_MANY_KEYS"     // RESOURCE_EXHAUSTED, no: there are as many keys as routers take
	ReasonKeyNotKept      = "KEY_NOT_KEPT"      // UNAVAILABLE, again: etcd did not take the key
	ReasonLastWorker      = "LAST_WORKER"       // FAILED_PRECONDITION, no: the drain would leave nobody of the role
	ReasonPolicyNotKept   = "POLICY_NOT_KEPT"   // UNAVAILABLE, again: etcd did not take the policy
	ReasonPolicyChanged   = "POLICY_CHANGED"    // ABORTED, again: another one was set meanwhile; read it first

	// A worker or a block store to routers and other workers.

	ReasonWorkerDraining      = "WORKER_DRAINING"      // UNAVAILABLE, elsewhere: it leaves
	ReasonWorkerEnds          = "WORKER_ENDS"          // FAILED_PRECONDITION, no: its process ends, so its drain cannot be taken back
	ReasonDrainUndone         = "DRAIN_UNDONE"         // ABORTED, no: an operator took the drain back while it waited
	ReasonWrongEpoch          = "WRONG_EPOCH"          // FAILED_PRECONDITION, no: the call is for another incarnation of it
	ReasonWrongWorker         = "WRONG_WORKER"         // PERMISSION_DENIED, no: the caller is not registered, or calls in another's name
	ReasonModelMismatch       = "MODEL_MISMATCH"       // FAILED_PRECONDITION, no: it has another model than the router was told
	ReasonEngineFailed        = "ENGINE_FAILED"        // UNAVAILABLE, elsewhere: the engine failed or stopped
	ReasonNoVocabulary        = "NO_VOCABULARY"        // FAILED_PRECONDITION, elsewhere: it does not know the texts of its tokens, which an output constraint needs
	ReasonNotFinite           = "NOT_FINITE"           // DATA_LOSS, elsewhere: what it computed is not finite; from a router, no
	ReasonKVNotFinite         = "KV_NOT_FINITE"        // DATA_LOSS, elsewhere: KV that it received is not finite: suspect the worker that computed it
	ReasonTransferRefused     = "TRANSFER_REFUSED"     // UNAVAILABLE, elsewhere: the receiver did not take the KV
	ReasonTransferFailed      = "TRANSFER_FAILED"      // UNAVAILABLE, again: the KV did not arrive
	ReasonTransferUnreachable = "TRANSFER_UNREACHABLE" // UNAVAILABLE, elsewhere: no transfer could begin: the path is at fault, not the workers
	ReasonFinishedAtPrefill   = "FINISHED_AT_PREFILL"  // CANCELLED, no: the first token ended the request, nothing is left to decode

	// A block store.

	ReasonBlocksHeld     = "BLOCKS_HELD"     // ALREADY_EXISTS, no: it has all the blocks
	ReasonBlocksArriving = "BLOCKS_ARRIVING" // ABORTED, again: another worker is putting some or all that it lacks
	ReasonBlocksMissing  = "BLOCKS_MISSING"  // NOT_FOUND, no: it lacks some; the metadata blocks says how many leading ones it has
	ReasonLayoutMismatch = "LAYOUT_MISMATCH" // FAILED_PRECONDITION, no: it holds blocks of another layout; UNAVAILABLE, again: of none yet
	ReasonStoreTooSmall  = "STORE_TOO_SMALL" // FAILED_PRECONDITION, no: not one block of the layout fits
	ReasonStoreFull      = "STORE_FULL"      // RESOURCE_EXHAUSTED, again: what it holds is being written or read; without RetryInfo, no
	ReasonStoreBusy      = "STORE_BUSY"      // RESOURCE_EXHAUSTED, again: too many transfers at a time

	// A router to itself, in explanations and traces, of a worker that gave no reason.

	ReasonWorkerSilent  = "WORKER_SILENT"   // UNAVAILABLE: it said nothing for too long, although its connection works
	ReasonEndedTooEarly = "ENDED_TOO_EARLY" // INTERNAL: its stream ended well before all was said
)

// MetadataBlocks is the key of the metadata of ReasonBlocksMissing.
const MetadataBlocks = "blocks"
