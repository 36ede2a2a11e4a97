package grammar

import "errors"

func (p *program) schema(text string) (int32, error) { return 0, errors.New("is not there yet") }
