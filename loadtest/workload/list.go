package workload

import "io"

// List is a source of requests that were made before.
type List []*Request

// Next implements Source: it takes the first request out.
func (l *List) Next() (*Request, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	first := (*l)[0]
	*l = (*l)[1:]
	return first, nil
}
