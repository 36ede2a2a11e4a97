// Package clustertest starts meshes for tests: in the test's own process, as processes
// of their own with real etcd and NATS servers, or in containers by deploy/compose. All
// three are used through a Client, so that one test can run against any.
//
// Only tests of the integration module import it. What it starts ends with the test.
package clustertest
