// Package membership keeps in etcd which workers exist, each with a record under a lease,
// the policy that operators set, and clients' API keys, of which it has hashes alone.
//
// A Member is a part's own membership, in any role: it joins, describes itself, drains and
// leaves, and answers the Worker service. A Registration keeps its record.
//
// Services and commands import it; it imports no service.
//
//	/tandem/v1/workers/{router|prefill|decode|kvtransfer}/{worker id}
//	/tandem/v1/policy
//	/tandem/v1/keys/{id of an API key}
//
// Values are protobuf JSON. Worker ids are path-escaped, so that a slash in one
// does not look like another level.
//
// # Losing etcd is not losing a worker
//
// A Registration renews its lease when half of the time is left, by its own monotonic
// clock, counted from when it sent the last renewal that etcd answered. Each time it also
// checks its record. If the lease has run out, the record is gone, or etcd has lost its
// data, it registers again under a new lease. It retries for ever and never ends the
// process. A Watch keeps its last view and says in View.Live whether etcd answers. It lists
// everything again after an absence, after a compaction, and if two checks in a row find
// that its view differs from etcd.
//
// # Starting while etcd is away
//
// A LastView remembers across starts. It keeps the view and the policy in a file and tells
// them to other routers that ask. Until etcd answers, it begins with the youngest view that
// it finds, marked as old. Such a view lists the workers of the past: its user must check
// who answers, and must conclude nothing from an absence.
//
// # Two processes with one id
//
// The last write wins. A process that starts overwrites any record. If it later finds
// another epoch in its place, under a lease, it knows that it is the older process: it logs
// that once, leaves the record alone, and registers again only when the key is empty. So two
// processes never overwrite each other in turn. A record without a lease, or an invalid one,
// belongs to no process: it is overwritten, with a warning.
//
// # Other writers
//
// Reading bounds what others can write into etcd: the bytes, id and addresses of a record,
// the workers of a view, the keys and bytes of a list, the views and the log lines that
// changes cause.
//
// # Goroutines
//
// Each Registration has one, which Registration.Close or Client.Close ends and waits for. A
// Member has none: its Run uses the caller's. Watch, WatchPolicy and WatchKeys run in the
// caller's goroutine and call notify from it. Those of a LastView have one more, to write the file and
// to follow the policy, which ends with them. Client.Close ends the goroutines of the etcd
// client.
package membership
