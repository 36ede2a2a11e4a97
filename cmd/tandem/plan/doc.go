// Package plan says how many prefill and decode workers serve a load within an SLO. It sizes
// both pools by the formulas of pkg/queueing, each with its assumption, and then corrects the
// sizes by simulations of the cluster, whose percentiles are its prediction. It decides
// nothing for live traffic: routers and workers of a simulation take their decisions with
// the live code.
//
// Commands import it. It starts no goroutines of its own. Equal questions, with equal seeds,
// have equal answers.
package plan
