package routingdriver

// Heard is what the pool of workers calls.
var Heard = (*Dispatcher).heard
