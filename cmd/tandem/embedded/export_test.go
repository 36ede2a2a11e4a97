package embedded

import "go.etcd.io/etcd/server/v3/embed"

// ExplainData is explainData.
func ExplainData(dataDir, dir string, err error) error {
	return explainData(EtcdConfig{DataDir: dataDir}, dir, err)
}

// PeerPorts is how many ports it has for peers.
func (e *Etcd) PeerPorts() int { return len(e.server.(*embed.Etcd).Peers) }

// NewEtcd is the Etcd of a server that runs already. fail makes it fail.
func NewEtcd(server interface{ Close() }) (e *Etcd, fail func(error)) {
	e = &Etcd{server: server, failed: newFailure()}
	return e, e.failed.add
}
