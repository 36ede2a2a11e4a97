// Package workers keeps a connection to each worker that membership lists, checks who answers
// there, and knows how old the list is. It does not choose workers for requests: pkg/routing
// does, which package routingdriver drives.
//
// The router's packages import it. A Pool owns a goroutine for the connection of each worker,
// and one for each prefix cache that it lists; Close waits for them. Lock order: Pool.mu and
// the lock of a dialLimiter are leaves.
package workers
