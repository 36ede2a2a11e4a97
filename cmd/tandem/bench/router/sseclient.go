package router

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/tandem-serving/tandem/pkg/api"
)

// sseClient reads answers as server-sent events of a completion. It speaks HTTP/1.1 by itself
// and looks at the beginning of each line only, as grpcClient does.
type sseClient struct {
	conn   net.Conn
	lines  *bufio.Reader
	times  *sendTimes
	prompt []uint32
	model  string
	header string // the line of "Authorization"; empty: none
}

func newSSEClient(ctx context.Context, address, model string, secure *security, b *sendTimes, prompt []uint32) (client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the router: %w", err)
	}
	c := &sseClient{times: b, prompt: prompt, model: model}
	if cfg := secure.clientTLS(); cfg != nil {
		encrypted := tls.Client(conn, cfg)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("connect to the router: %w", err), conn.Close())
		}
		conn = encrypted
	}
	if value := secure.authorization(); value != "" {
		c.header = "Authorization: " + value + "\r\n"
	}
	c.conn, c.lines = conn, bufio.NewReaderSize(conn, 4<<10)
	return c, nil
}

func (c *sseClient) close() error { return c.conn.Close() }

func (c *sseClient) do(ctx context.Context, id string, tokens int, got func(at int64)) error {
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })() // ends what waits
	body, err := json.Marshal(map[string]any{
		"model": c.model, "prompt": c.prompt, "max_tokens": tokens, "temperature": 0, "stream": true, "ignore_eos": true,
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s: %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		http.CanonicalHeaderKey(api.HeaderRequestID), id, c.header, len(body), body); err != nil {
		return err
	}
	if err := c.head(); err != nil {
		return err
	}
	data := []byte("data: ")
	for done := false; ; {
		line, err := c.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		event, isEvent := bytes.CutPrefix(line, data)
		switch {
		case done && string(line) == "0": // the last chunk, and its end
			_, err := c.lines.ReadSlice('\n')
			return err
		case !isEvent:
		case string(event) == "[DONE]":
			done = true
		case bytes.HasPrefix(event, []byte(`{"error"`)):
			return fmt.Errorf("the answer broke off: %s", event)
		case !bytes.Contains(event, []byte(`"finish_reason":"`)):
			got(c.times.now())
		}
	}
}

// head reads the head of an answer that went well.
func (c *sseClient) head() error {
	reader := textproto.NewReader(c.lines)
	status, err := reader.ReadLine()
	if err != nil {
		return err
	}
	if _, err := reader.ReadMIMEHeader(); err != nil {
		return err
	}
	if !strings.Contains(status, " 200 ") {
		rest, _ := io.ReadAll(io.LimitReader(c.lines, int64(c.lines.Buffered())))
		return fmt.Errorf("the router answered %q: %s", status, rest)
	}
	return nil
}
