package kvtransfer

// Attach is what ServePages does for a process that asks for the pages.
func (r *Receiver) Attach(key, transfer, secret uint64) (detached func(), err error) {
	return r.letMap(key, transfer, secret, func() {})
}
