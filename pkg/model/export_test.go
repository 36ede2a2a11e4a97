package model

type HeaderEntry = headerEntry

var (
	Architectures = architectures
	ParseHeader   = parseHeader
)

// ParseConfig reads a config.json.
func ParseConfig(data []byte) (Spec, error) { return parseConfig(configFile, data) }

// Config is the config.json of a shape.
func (s Shape) Config() ([]byte, error) {
	data, _, err := s.config()
	return data, err
}
