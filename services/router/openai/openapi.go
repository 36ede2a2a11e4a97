package openai

import (
	_ "embed"
	"slices"
)

//go:embed openapi.json
var openAPI []byte

// OpenAPI is the description of the HTTP API in OpenAPI 3.1, as JSON. Tests hold it against
// what the parser reads and the server answers.
func OpenAPI() []byte { return slices.Clone(openAPI) }
