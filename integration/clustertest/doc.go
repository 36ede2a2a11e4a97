// Package clustertest starts meshes for tests: in the test's own process, or as
// processes of their own with real etcd and NATS servers. Both kinds are used
// through a Client, so that one test can run against either.
//
// Only tests of the integration module import it. What it starts ends with the test.
package clustertest
