package routing

import (
	"slices"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// peer is what another router says that it serves of one model.
type peer struct {
	router  string
	version Version
}

// learnPeers takes in what routers say in their records, by id, so that the order in which
// etcd lists them does not matter.
func (rt *Router) learnPeers(records []*controlv1.WorkerRecord) {
	rt.peers = make(map[string][]peer)
	for _, r := range records {
		v := Version{r.GetModelDigest(), r.GetLayout().GetArithmeticClass()}
		if r.GetRole() == controlv1.Role_ROLE_ROUTER && v.Digest != "" && v.Class != "" {
			rt.peers[r.GetModel()] = append(rt.peers[r.GetModel()], peer{r.GetId(), v})
		}
	}
}

// peersVersion is what most routers serve of a model, of versions that some worker has.
func (rt *Router) peersVersion(m Model, workers map[Version]int) (Version, bool) {
	votes := make(map[Version]int)
	for _, p := range rt.peers[m.Name] {
		if workers[p.version] > 0 && (m.Digest == "" || m.Digest == p.version.Digest) {
			votes[p.version]++
		}
	}
	return mostVotes(votes)
}

// comparePeers says which routers serve versions that this one does not, once for each
// change. Where the policy says what is served, all go by that, whatever they found
// before.
func (rt *Router) comparePeers(m Model) {
	var others []string
	for _, p := range rt.peers[m.Name] {
		if rt.served[m.Name][0].pin != nil && !rt.serves(m.Name, p.version) {
			others = append(others, p.router+": "+p.version.String())
		}
	}
	slices.Sort(others)
	if slices.Equal(others, rt.disagreeing[m.Name]) {
		return
	}
	rt.disagreeing[m.Name] = others
	rt.out = append(rt.out, Disagree{Model: m.Name, Served: rt.Served(m.Name), Others: others})
}

// Disagreeing is how many routers serve versions that this one does not.
func (rt *Router) Disagreeing() (n int) {
	for _, others := range rt.disagreeing {
		n += len(others)
	}
	return n
}
