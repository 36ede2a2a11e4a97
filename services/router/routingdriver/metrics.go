package routingdriver

import (
	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// show makes the metrics.
func (d *Dispatcher) show(set *metricset.Set) error {
	d.suspicions = set.Counters("tandem_router_worker_suspicions_total", "Times that the router began to avoid a worker, by cause: silent in a request, contradicted by workers that served what it failed, or slow beside what its reports say.", "cause", "silent", "contradicted", "slow")
	d.distrusts = set.Counters("tandem_router_reports_distrusted_total", "Times that the router stopped believing a worker's load reports, by reason: two senders used its numbers, or it took a request at once while it called itself full; or what another router reports, since two senders used its numbers.", "reason", routing.DistrustNumbers, routing.DistrustRefuted, routing.DistrustRouter)
	for _, gauge := range []struct {
		name, help string
		read       func(*routing.Router) int
	}{
		{"tandem_router_kv_paths_broken", "Pairs of a prefill and a decode worker whose last transfer could not begin.", (*routing.Router).BrokenPaths},
		{"tandem_router_foreign_workers", "Workers that get no requests, because their weights or arithmetic differ from the version that is served.", (*routing.Router).ForeignWorkers},
		{"tandem_router_disagreeing_routers", "Routers in etcd that serve versions of a model that this router does not serve.", (*routing.Router).Disagreeing},
		{"tandem_router_distrusted_workers", "Workers whose load reports the router does not believe; it uses its own account of them.", func(rt *routing.Router) int { return rt.DistrustedWorkers(d.loop.Now()) }},
		{"tandem_router_peers", "Other routers that have told this one lately what they sent to workers and what they hold.", func(rt *routing.Router) int { return rt.KnownRouters(d.loop.Now()) }},
		{"tandem_router_unmet_workers", "Workers in etcd without a connection: they have not answered yet, do not any more, or another process answers at their address. Those that drain do not count once they have answered.", (*routing.Router).UnansweredWorkers},
		{"tandem_router_index_blocks", "Different KV blocks that the router knows to be in prefix caches of workers.", (*routing.Router).IndexedBlocks},
		{"tandem_router_index_unsure_workers", "Workers of which the router does not know for certain what their prefix caches hold: KV events were lost, or nothing was heard of them.", func(rt *routing.Router) int { return rt.UnsureWorkers(d.loop.Now()) }},
		{"tandem_router_requests_waiting", "Requests in the router's queue.", (*routing.Router).Waiting},
		{"tandem_router_requests_running", "Requests on workers.", (*routing.Router).Running},
	} {
		set.GaugeFunc(gauge.name, gauge.help, nil, func() float64 { return float64(look(d, gauge.read)) })
	}
	set.CounterFunc("tandem_router_index_forgotten_blocks_total", "KV blocks in prefix caches that the router forgot because it knew too many.", nil, func() float64 {
		return float64(look(d, (*routing.Router).ForgottenBlocks))
	})
	// It is what the router's signals say of the queue as well, so that scalers of either
	// kind see one number.
	for _, role := range []controlv1.Role{controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE} {
		set.GaugeFunc("tandem_router_backlog_tokens", "Prompt tokens of the requests in the router's queue, by the pool that they wait for.",
			prometheus.Labels{"pool": api.Name(role)}, func() float64 {
				var tokens uint64
				for _, depths := range d.Queued() {
					for _, depth := range depths {
						if depth.GetPool() == role {
							tokens += depth.GetTokens()
						}
					}
				}
				return float64(tokens)
			})
	}
	set.Add(predictions{d})
	return set.Err()
}

// predictions shows how well each worker's times are predicted.
type predictions struct{ *Dispatcher }

var (
	predictionError = prometheus.NewDesc("tandem_router_prediction_error_ratio", "Mean size of the relative error of a worker's predicted times: of the first token of prompts that it computes, or of a token that it decodes.", []string{"worker", "time"}, nil)
	predictionSlow  = prometheus.NewDesc("tandem_router_worker_slowness_ratio", "How many times longer a worker's times take than its reports say, beside other workers, where that is much: its predictions are multiplied by it. Otherwise 1.", []string{"worker", "time"}, nil)
	predictionBias  = prometheus.NewDesc("tandem_router_prediction_bias_ratio", "Mean relative error of a worker's predicted times, likewise: above 0 where what was predicted took longer.", []string{"worker", "time"}, nil)
)

// Describe implements prometheus.Collector.
func (predictions) Describe(out chan<- *prometheus.Desc) {
	out <- predictionError
	out <- predictionBias
	out <- predictionSlow
}

// Collect implements prometheus.Collector.
func (p predictions) Collect(out chan<- prometheus.Metric) {
	for _, worker := range look(p.Dispatcher, (*routing.Router).Predictions) {
		for of, slow := range map[string]float64{"first_token": worker.SlowFirst, "token": worker.SlowToken} {
			out <- prometheus.MustNewConstMetric(predictionSlow, prometheus.GaugeValue, slow, worker.Worker, of)
		}
		for of, e := range map[string]routing.Errors{"first_token": worker.FirstToken, "token": worker.Token} {
			out <- prometheus.MustNewConstMetric(predictionError, prometheus.GaugeValue, e.Mean, worker.Worker, of)
			out <- prometheus.MustNewConstMetric(predictionBias, prometheus.GaugeValue, e.Bias, worker.Worker, of)
		}
	}
}
