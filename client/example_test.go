package client_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// storyteller is a router that tells one story; its first answer breaks off.
type storyteller struct {
	inferencev1.UnimplementedInferenceServer
	lost bool
}

func (s *storyteller) Generate(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	_ = stream.Send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{Seed: 7, PromptTokens: 4}}})
	for i, word := range []string{" there", " was", " a", " king"} {
		if i == 2 && !s.lost {
			s.lost = true
			return status.Error(codes.Unavailable, "lost")
		}
		_ = stream.Send(&inferencev1.GenerateEvent{Offset: uint64(i), Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{TokenIds: []uint32{uint32(100 + i)}, Text: word}}})
	}
	return stream.Send(&inferencev1.GenerateEvent{Offset: 4, Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
		Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH, Text: ".", Usage: &inferencev1.Usage{PromptTokens: 4, CompletionTokens: 4},
	}}})
}

// start runs a router, and gives its address.
func start() (address string, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	inferencev1.RegisterInferenceServer(server, new(storyteller))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	return listener.Addr().String(), func() { server.Stop(); <-done }
}

func ExampleClient_Generate() {
	address, stop := start()
	defer stop()
	c, err := client.New([]string{address})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	request := client.Prompt("Once upon a time")
	request.MaxTokens = proto.Uint32(4)
	for token, err := range c.Generate(ctx, request) {
		if err != nil {
			fmt.Println(status.Code(err), client.Reason(err))
			return
		}
		fmt.Print(token.Text)
		if end := token.Finished; end != nil {
			fmt.Printf("\n%d tokens after a prompt of %d\n", end.GetUsage().GetCompletionTokens(), token.Accepted.GetPromptTokens())
		}
	}
	// Output:
	// there was a king.
	// 4 tokens after a prompt of 4
}

func ExampleCollect() {
	address, stop := start()
	defer stop()
	c, err := client.New([]string{address})
	if err != nil {
		panic(err)
	}
	defer c.Close()

	request := client.Chat(client.System("Tell a story."), client.User("Who was there?"))
	request.StructuredOutput = client.Regex("[a-z ]+\\.")
	answer, err := client.Collect(c.Generate(context.Background(), request))
	fmt.Printf("%q %v %v\n", answer.Text, answer.TokenIDs, err)
	// Output: " there was a king." [100 101 102 103] <nil>
}

func ExampleClient_Generate_leaving() {
	address, stop := start()
	defer stop()
	c, err := client.New([]string{address})
	if err != nil {
		panic(err)
	}
	defer c.Close()

	for token, err := range c.Generate(context.Background(), client.Prompt("Once upon a time")) {
		if err != nil || token.Offset == 1 {
			break // which cancels the request
		}
		fmt.Printf("%q\n", token.Text)
	}
	// Output: " there"
}
