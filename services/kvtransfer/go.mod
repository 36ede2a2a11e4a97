module github.com/tandem-serving/tandem/services/kvtransfer

go 1.26.0

require (
	github.com/tandem-serving/tandem/pkg v0.0.0
	github.com/tandem-serving/tandem/proto v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	pgregory.net/rapid v1.3.0
)

require (
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b // indirect
)

replace (
	github.com/tandem-serving/tandem/pkg => ../../pkg
	github.com/tandem-serving/tandem/proto => ../../proto
)
