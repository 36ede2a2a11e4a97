// Command grpc asks a model over gRPC, with the client that is made from proto/, and
// prints the answer as it comes.
//
//	go run ./examples/grpc "Tell me of a king."
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// A request that is refused has not begun, so that gRPC may send it again: when the
// server says so, else after these times.
const retries = `{"methodConfig": [{"name": [{"service": "tandem.inference.v1.Inference"}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.2s", "maxBackoff": "5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := ask(ctx, cmp.Or(strings.Join(os.Args[1:], " "), "Tell me of a king."))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, message(err))
		os.Exit(1)
	}
}

func addr() string { return cmp.Or(os.Getenv("TANDEM_ADDR"), "127.0.0.1:7070") }

// message is what is wrong. A status of a mesh has details; one without is of a connection
// that failed.
func message(err error) string {
	s := status.Convert(err)
	if s.Code() == codes.Unavailable && len(s.Details()) == 0 {
		return fmt.Sprintf("no answer from %s: start a mesh with 'tandem up', or set TANDEM_ADDR", addr())
	}
	return fmt.Sprintf("%s: %s", s.Code(), s.Message())
}

func ask(ctx context.Context, prompt string) error {
	transport := insecure.NewCredentials()
	if ca := os.Getenv("TANDEM_CA"); ca != "" { // the authority that a mesh with TLS names
		var err error
		if transport, err = credentials.NewClientTLSFromFile(ca, ""); err != nil {
			return err
		}
	}
	conn, err := grpc.NewClient(addr(), grpc.WithTransportCredentials(transport), grpc.WithDefaultServiceConfig(retries))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if key := os.Getenv("TANDEM_API_KEY"); key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{
		Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
			Messages: []*inferencev1.Message{{Role: "user", Content: prompt}},
		}},
		MaxTokens: proto.Uint32(60),
	})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if tokens := event.GetTokens(); tokens != nil {
			fmt.Print(tokens.GetText())
		}
		if end := event.GetFinished(); end != nil { // with text that was held back, in case a stop text comes
			fmt.Println(end.GetText())
			fmt.Fprintf(os.Stderr, "[%d prompt tokens, %d in the answer]\n", end.GetUsage().GetPromptTokens(), end.GetUsage().GetCompletionTokens())
		}
	}
}
