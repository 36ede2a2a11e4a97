package model

// Config is the config.json of a shape.
func (s Shape) Config() ([]byte, error) {
	data, _, err := s.config()
	return data, err
}
