//go:build !linux

package trywrite

import "errors"

func send(int, []byte) (int, error) { return 0, errors.ErrUnsupported }
