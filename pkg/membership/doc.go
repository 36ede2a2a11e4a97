// Package membership keeps in etcd who is there: each worker's record under a
// lease, and the policy that operators set.
//
// A Member is a part's own place there, of whichever role: it joins, announces what it
// is, drains and leaves, and answers the Worker service. A Registration keeps its record.
//
// Services and commands import it; it imports no service.
//
//	/tandem/v1/workers/{router|prefill|decode|kvtransfer}/{worker id}
//	/tandem/v1/policy
//
// Values are protobuf JSON. Worker ids are path-escaped, so that a slash in one
// does not look like another level.
//
// # Losing etcd is not losing a worker
//
// A Registration renews its lease at half of the time that is left, by its own
// monotonic clock from when it sent the last renewal that was answered, and each
// time looks at its record. When the lease ran out, or the record is gone, or
// etcd came back without its data, it registers again under a new lease; it
// retries for ever and nothing of it ends the process. A Watch keeps its last
// view, says in View.Live whether etcd answers, and lists everything again after
// an absence, a compaction, or a difference between what it knows and what etcd
// says that stays for two looks.
//
// # Starting while etcd is away
//
// A LastView remembers across starts: it keeps the view and the policy in a file, tells
// them to other routers that ask, and begins with the youngest that it finds, marked as
// old, while etcd has not answered. A view lists who was there, not who is: whoever
// goes by it has to make sure who answers, and nothing follows from an absence.
//
// # Two processes with one id
//
// The record that was written last wins. A process that starts writes over
// whatever is there. One that finds another epoch in its place afterwards, under a
// lease, knows that it is the older one: it logs that once, lets its record be, and
// takes the place again only when the key is empty. So two processes never write in
// turns. A record without a lease, or one that counts for nothing, is no process's:
// it is written over, with a warning.
//
// # Whoever else writes there
//
// What can be written into etcd by somebody else is bounded when it is read: the
// bytes, id and addresses of a record, the workers of a view, the keys and bytes that
// are listed, the views and the log lines that changes cause.
//
// # Goroutines
//
// Each Registration has one, which Registration.Close or Client.Close ends and
// waits for. A Member has none: Run is its caller's. Watch and WatchPolicy run in the
// caller's goroutine and call notify from it; those of a LastView have one besides, to
// write the file and to follow the policy, which end with them. The etcd client has its
// own, which Client.Close ends.
package membership
