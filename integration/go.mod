module github.com/tandem-serving/tandem/integration

go 1.26.0

require (
	github.com/tandem-serving/tandem/cmd/tandem v0.0.0
	github.com/tandem-serving/tandem/pkg v0.0.0
	github.com/tandem-serving/tandem/proto v0.0.0
	github.com/tandem-serving/tandem/services/decode v0.0.0
	github.com/tandem-serving/tandem/services/kvtransfer v0.0.0
	github.com/tandem-serving/tandem/services/prefill v0.0.0
	github.com/tandem-serving/tandem/services/router v0.0.0
)

require (
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

replace (
	github.com/tandem-serving/tandem/cmd/tandem => ../cmd/tandem
	github.com/tandem-serving/tandem/pkg => ../pkg
	github.com/tandem-serving/tandem/proto => ../proto
	github.com/tandem-serving/tandem/services/decode => ../services/decode
	github.com/tandem-serving/tandem/services/kvtransfer => ../services/kvtransfer
	github.com/tandem-serving/tandem/services/prefill => ../services/prefill
	github.com/tandem-serving/tandem/services/router => ../services/router
)
