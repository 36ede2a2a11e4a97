package embedded

// ExplainData is explainData.
func ExplainData(dataDir, dir string, err error) error {
	return explainData(EtcdConfig{DataDir: dataDir}, dir, err)
}

// PeerPorts is how many ports it has for peers.
func (e *Etcd) PeerPorts() int { return len(e.server.Peers) }
