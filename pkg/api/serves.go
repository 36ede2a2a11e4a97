package api

import controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

// Serves says whether the router gives a worker requests.
func Serves(v *controlv1.WorkerView) bool {
	return v.GetConnected() && v.GetExcluded() == "" && v.GetRecord().GetState() == controlv1.WorkerState_WORKER_STATE_SERVING
}
