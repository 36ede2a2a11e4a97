package blockstore

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// ReportApart is the least time between two load reports of a store.
const ReportApart = 100 * time.Millisecond

// LoadReport is what a store tells the routers of its blocks.
func (s Stats) LoadReport() *controlv1.LoadReport {
	return &controlv1.LoadReport{
		Role: controlv1.Role_ROLE_KVTRANSFER, StepTime: &controlv1.StepTimeModel{},
		BlocksFree: uint32(s.Pool.Free + s.Pool.Cached), BlocksReserved: uint32(s.Pool.Reserved),
		BlocksQuarantined: uint32(s.Pool.Quarantined), BlocksTotal: uint32(s.Pool.Total),
	}
}
