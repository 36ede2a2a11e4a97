// Command structured asks for JSON of a schema over gRPC, with Tandem's client, and reads it into a
// struct. Every answer that is complete obeys the schema.
//
//	go run ./examples/structured "Tell me of a king."
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/client"
)

// hero is what the schema describes. Bounds keep the answer short.
type hero struct {
	Name    string   `json:"name"`
	Age     int      `json:"age"`
	Friends []string `json:"friends"`
}

const schema = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "minLength": 1, "maxLength": 20},
		"age": {"type": "integer", "minimum": 1, "maximum": 99},
		"friends": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2}
	},
	"required": ["name", "age", "friends"],
	"additionalProperties": false
}`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := ask(ctx, cmp.Or(strings.Join(os.Args[1:], " "), "Tell me of a king."))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, prompt string) error {
	addr := cmp.Or(os.Getenv("TANDEM_ADDR"), "127.0.0.1:7070")
	var options []client.Option
	if key := os.Getenv("TANDEM_API_KEY"); key != "" {
		options = append(options, client.WithToken(key))
	}
	if ca := os.Getenv("TANDEM_CA"); ca != "" { // the authority that a mesh with TLS names
		text, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		authorities := x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(text) {
			return fmt.Errorf("TANDEM_CA: %s has no certificate: name the authority's ca.crt", ca)
		}
		options = append(options, client.WithTLSConfig(&tls.Config{RootCAs: authorities}))
	}
	c, err := client.New([]string{addr}, options...)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	request := client.Chat(client.User(prompt))
	request.StructuredOutput = client.JSONSchema(schema)
	request.MaxTokens = proto.Uint32(200) // more than the longest answer
	answer, err := client.Collect(c.Generate(ctx, request))
	if status.Code(err) == codes.Unavailable && client.Reason(err) == "" {
		return fmt.Errorf("no answer from %s: start a mesh with 'tandem up', or set TANDEM_ADDR", addr)
	}
	if err != nil {
		return err
	}
	var h hero
	if err := json.Unmarshal([]byte(answer.Text), &h); err != nil {
		return fmt.Errorf("the answer is cut: %w", err)
	}
	fmt.Printf("%q is %d years old and has %d friends: %q\n", h.Name, h.Age, len(h.Friends), h.Friends)
	return nil
}
