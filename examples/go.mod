module github.com/tandem-serving/tandem/examples

go 1.26.0

require (
	github.com/openai/openai-go/v3 v3.96.0
	github.com/tandem-serving/tandem/client v0.0.0
	github.com/tandem-serving/tandem/proto v0.0.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b // indirect
)

replace (
	github.com/tandem-serving/tandem/client => ../client
	github.com/tandem-serving/tandem/proto => ../proto
)
