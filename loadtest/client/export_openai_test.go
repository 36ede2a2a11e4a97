package client

import (
	"context"
	"net/url"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// Unreached is the record of a request whose connection failed in that way.
func Unreached(ctx context.Context, err error) *record.Record {
	r := &record.Record{Sent: record.Unset}
	end(ctx, &url.Error{Op: "Post", URL: "http://server", Err: err}, r)
	return r
}
