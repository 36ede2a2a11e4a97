// Package membership keeps in etcd who is there: each worker's record under a
// lease, and the policy that operators set.
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
// # Two processes with one id
//
// The record that was written last wins. A process that starts writes over
// whatever is there. One that finds another epoch in its place afterwards knows
// that it is the older one: it logs that once, lets its record be, and takes the
// place again only when the key is empty. So two processes never write in turns.
//
// # Goroutines
//
// Each Registration has one, which Registration.Close or Client.Close ends and
// waits for. Watch and WatchPolicy run in the caller's goroutine and call notify
// from it. The etcd client has its own, which Client.Close ends.
package membership
