// Command importer is somebody else's program: it uses modules of Tandem at a version.
package main

import (
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/routing"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func main() {
	core := routing.New(routing.Config{}, nil)
	fmt.Println(len(core.Workers(time.Now())), new(sender.Core) != nil, new(loadtest.Config) != nil, inferencev1.Inference_ServiceDesc.ServiceName)
}
