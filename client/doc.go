// Package client asks the routers of a mesh, over gRPC.
//
//	c, err := client.New([]string{"10.0.0.1:7070", "10.0.0.2:7070"}, client.WithToken(key))
//	...
//	for token, err := range c.Generate(ctx, client.Prompt("Once upon a time")) {
//		if err != nil {
//			return err
//		}
//		fmt.Print(token.Text)
//	}
//
// Requests and answers are the messages of tandem.inference.v1; docs/api.md has their fields.
//
// A client knows several routers, each of which serves every request. A request that one of
// them cannot take goes to another. A stream that breaks goes on, there or at another, with no
// token twice and none missing: the same seed gives the same tokens everywhere. Leaving a loop, or
// the end of its context, cancels the request.
//
// Errors are gRPC statuses: status.Code, Reason and RetryAfter read them.
//
// Programs of anybody import it. It needs proto and gRPC, and nothing else. It starts no
// goroutines but those of gRPC, which end with Close.
package client
