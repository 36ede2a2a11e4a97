package signals

// What tests look at from outside.
var (
	// KvSubject is the subject of a worker's KV events, QueueSubject that of a model's queue depths.
	KvSubject, QueueSubject = kvSubject, queueSubject
	// EncodeToken writes a name as one token of a subject.
	EncodeToken = encodeToken
)
