package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// reportsLate is the age of a load report from which on something holds reports up: workers send
// one each second.
const reportsLate = 5 * time.Second

// Mesh judges a router's view of all workers.
func Mesh(list *controlv1.ListWorkersResponse) []Check {
	return []Check{
		membershipOf(list), workersOf(list.GetWorkers()), drainingOf(list.GetWorkers()), connectionsOf(list.GetWorkers()),
		reportsOf(list.GetWorkers()), trustOf(list.GetWorkers()), layoutsOf(list.GetWorkers()), Versions("versions", recordsOf(list.GetWorkers())),
	}
}

func recordsOf(views []*controlv1.WorkerView) (records []*controlv1.WorkerRecord) {
	for _, v := range views {
		records = append(records, v.GetRecord())
	}
	return records
}

func membershipOf(list *controlv1.ListWorkersResponse) Check {
	c := Check{Name: "membership", Status: OK, Detail: "etcd answers the router"}
	if !list.GetOld() {
		return c
	}
	c.Status, c.Advice = Failed, "check that etcd runs and that the router reaches it; until then routers find no new workers"
	c.Detail = "etcd has not answered the router yet"
	if age := list.GetAge(); age != nil {
		c.Detail = fmt.Sprintf("etcd has not answered the router for %v", age.AsDuration().Round(time.Second))
	}
	return c
}

// workersOf checks that each phase of a request has a worker, for each model.
func workersOf(views []*controlv1.WorkerView) Check {
	all := count(views)
	c := Check{Name: "workers", Status: OK, Detail: "serving: " + all.String()}
	models := map[string][]*controlv1.WorkerView{"": nil} // without any, nothing is served
	for _, v := range views {
		if v.GetRecord().GetModel() != "" {
			delete(models, "")
			models[v.GetRecord().GetModel()] = append(models[v.GetRecord().GetModel()], v)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		n, of := count(models[model]), ""
		if len(models) > 1 {
			of = " of " + model
		}
		switch {
		case !n.whole:
			c.Status, c.Advice = Failed, "no request"+of+" can be served: start a decode worker with 'tandem serve --target=decode'"
			return c
		case n.decode == 0:
			c.Status, c.Advice = Warning, "prefill workers"+of+" serve alone: start a decode worker with 'tandem serve --target=decode'"
		case n.prefill == 0 && n.idle > 0:
			c.Status, c.Advice = Warning, "decode workers"+of+" serve alone, since no prefill worker does: the checks below and their logs say why"
		}
	}
	return c
}

// counts are workers that get requests, and prefill workers that get none.
type counts struct {
	prefill, decode, stores, idle int
	whole                         bool // one of them can do all of a request
}

func count(views []*controlv1.WorkerView) (n counts) {
	for _, v := range views {
		role := v.GetRecord().GetRole()
		switch {
		case !api.Serves(v):
			if role == controlv1.Role_ROLE_PREFILL {
				n.idle++
			}
		case role == controlv1.Role_ROLE_PREFILL:
			n.prefill++
			n.whole = n.whole || v.GetRecord().GetWholeRequests()
		case role == controlv1.Role_ROLE_DECODE:
			n.decode++
			n.whole = true
		case role == controlv1.Role_ROLE_KVTRANSFER:
			n.stores++
		}
	}
	return n
}

func (n counts) String() string {
	return fmt.Sprintf("prefill %d, decode %d, block stores %d", n.prefill, n.decode, n.stores)
}

// those are the ids of the workers that is is true of.
func those(views []*controlv1.WorkerView, is func(*controlv1.WorkerView) bool) (ids []string) {
	for _, v := range views {
		if is(v) {
			ids = append(ids, v.GetRecord().GetId())
		}
	}
	return ids
}

func drainingOf(views []*controlv1.WorkerView) Check {
	ids := those(views, func(v *controlv1.WorkerView) bool {
		return v.GetRecord().GetState() != controlv1.WorkerState_WORKER_STATE_SERVING
	})
	if len(ids) == 0 {
		return Check{Name: "draining", Status: OK, Detail: "no worker drains"}
	}
	return Check{Name: "draining", Status: Warning, Detail: "no new requests go to " + listed(ids), Advice: "'tandem undrain ID' takes a worker back that should serve"}
}

func connectionsOf(views []*controlv1.WorkerView) Check {
	c := Check{Name: "connections", Status: OK, Detail: "the router is connected to all workers"}
	if lost := those(views, func(v *controlv1.WorkerView) bool { return !v.GetConnected() }); len(lost) > 0 {
		c.Status, c.Detail = Failed, "the router cannot connect to "+listed(lost)
		for _, v := range views {
			if why := v.GetExcluded(); !v.GetConnected() && why != "" {
				c.Detail += fmt.Sprintf(" (%s: %s)", v.GetRecord().GetId(), why)
				break
			}
		}
		c.Advice = "check that the worker runs, that its --advertise is right and that the router can reach that address"
		return c
	}
	if gone := those(views, func(v *controlv1.WorkerView) bool { return !v.GetRegistered() }); len(gone) > 0 {
		c.Status, c.Detail = Warning, listed(gone)+" run but are not in etcd"
		c.Advice = "check that they reach etcd; their logs say more"
	}
	return c
}

func reportsOf(views []*controlv1.WorkerView) Check {
	var late []string
	for _, v := range views {
		switch id, age := v.GetRecord().GetId(), v.GetLoadAge().AsDuration(); {
		case !v.GetConnected():
		case v.GetLoad() == nil:
			late = append(late, id+" (none yet)")
		case age > reportsLate:
			late = append(late, fmt.Sprintf("%s (none for %v)", id, age.Round(100*time.Millisecond)))
		}
	}
	if len(late) == 0 {
		return Check{Name: "load reports", Status: OK, Detail: "all workers report their load"}
	}
	return Check{
		Name: "load reports", Status: Warning, Detail: "late from " + listed(late),
		Advice: "check that NATS runs and that the router and these workers reach it, if they did not just start",
	}
}

// trustOf checks for workers that the router is connected to and does not use.
func trustOf(views []*controlv1.WorkerView) Check {
	var why []string
	for _, v := range views {
		if v.GetConnected() && v.GetExcluded() != "" {
			why = append(why, fmt.Sprintf("%s (%s)", v.GetRecord().GetId(), v.GetExcluded()))
		}
	}
	if len(why) == 0 {
		return Check{Name: "trust", Status: OK, Detail: "the router avoids no worker"}
	}
	return Check{Name: "trust", Status: Warning, Detail: "the router avoids " + listed(why), Advice: "see the part 'Troubleshooting' of docs/deploying.md"}
}

// layoutsOf checks that KV can be sent from prefill to decode workers of each model.
func layoutsOf(views []*controlv1.WorkerView) Check {
	type sides struct{ prefill, decode map[uint64]bool }
	models := map[string]sides{}
	for _, v := range views {
		r := v.GetRecord()
		s, known := models[r.GetModel()]
		if !known {
			s = sides{map[uint64]bool{}, map[uint64]bool{}}
			models[r.GetModel()] = s
		}
		switch r.GetRole() {
		case controlv1.Role_ROLE_PREFILL:
			s.prefill[r.GetLayoutDigest()] = true
		case controlv1.Role_ROLE_DECODE:
			s.decode[r.GetLayoutDigest()] = true
		}
	}
	c := Check{Name: "KV layouts", Status: OK, Detail: "all workers of a model have one layout of KV"}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		s := models[name]
		all, shared := maps.Clone(s.prefill), false
		maps.Copy(all, s.decode)
		for digest := range s.prefill {
			shared = shared || s.decode[digest]
		}
		switch {
		case len(s.prefill) > 0 && len(s.decode) > 0 && !shared:
			return Check{
				Name: c.Name, Status: Failed, Detail: fmt.Sprintf("no prefill worker of %s has the layout of a decode worker, so no KV can be sent", name),
				Advice: "give both the same model, engine, types of weights and KV, and --block-tokens",
			}
		case len(all) > 1:
			c.Status, c.Detail = Warning, fmt.Sprintf("workers of %s have %d layouts of KV, and work together only with their like", name, len(all))
			c.Advice = "give all the same model, engine, types of weights and KV, and --block-tokens, unless you replace them just now"
		}
	}
	return c
}

// Versions checks that all parts run one version. The check has that name.
func Versions(name string, records []*controlv1.WorkerRecord) Check {
	parts := map[string][]string{}
	for _, r := range records {
		parts[r.GetVersion()] = append(parts[r.GetVersion()], r.GetId())
	}
	switch len(parts) {
	case 0:
		return Check{Name: name, Status: Skipped, Detail: "there are no parts to compare"}
	case 1:
		return Check{Name: name, Status: OK, Detail: fmt.Sprintf("%s: all run %s", roles(records), slices.Collect(maps.Keys(parts))[0])}
	}
	var says []string
	for _, version := range slices.Sorted(maps.Keys(parts)) {
		says = append(says, fmt.Sprintf("%s (%s)", version, listed(parts[version])))
	}
	return Check{
		Name: name, Status: Warning, Detail: fmt.Sprintf("parts run %d versions, %s", len(parts), strings.Join(says, ", ")),
		Advice: "finish the roll-out: docs/deploying.md says in which order",
	}
}

// roles counts records by role.
func roles(records []*controlv1.WorkerRecord) string {
	counts := map[controlv1.Role]int{}
	for _, r := range records {
		counts[r.GetRole()]++
	}
	var says []string
	for _, role := range slices.Sorted(maps.Keys(counts)) {
		says = append(says, fmt.Sprintf("%s %d", api.Name(role), counts[role]))
	}
	return strings.Join(says, ", ")
}
