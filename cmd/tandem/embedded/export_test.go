package embedded

// ExplainData is explainData.
func ExplainData(dataDir, dir string, err error) error {
	return explainData(EtcdConfig{DataDir: dataDir, ClientAddress: "127.0.0.1:0"}, dir, err)
}

// PeerPorts is how many ports it has for peers.
func (e *Etcd) PeerPorts() int { return len(e.server.Peers) }
