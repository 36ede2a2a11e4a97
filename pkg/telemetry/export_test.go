package telemetry

// BuildOf says what the Go command stamped.
var BuildOf = buildOf
