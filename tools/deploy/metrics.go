package deploy

import (
	"regexp"
	"slices"
)

var (
	metricName  = regexp.MustCompile(`\b(?:tandem_|vllm:)[a-z0-9_]+`)
	documented  = regexp.MustCompile("`((?:tandem_|vllm:)[a-z0-9_:]+)`")
	adapterName = regexp.MustCompile(`(?m)^\s+as: (tandem_\w+)$`)
)

// CheckMetrics says which names of metrics in files are neither in
// docs/metrics.md, which a test of the mesh keeps true, nor defined by the rules of
// prometheus-adapter in one of the files.
func CheckMetrics(document []byte, files map[string][]byte) []error {
	var known []string
	for _, match := range documented.FindAllSubmatch(document, -1) {
		known = append(known, string(match[1]))
	}
	for _, text := range files {
		for _, match := range adapterName.FindAllSubmatch(text, -1) {
			known = append(known, string(match[1]))
		}
	}
	r := &report{}
	for file, text := range files {
		for _, name := range metricName.FindAllString(string(text), -1) {
			if !slices.Contains(known, name) {
				r.add("%s: there is no metric %s", file, name)
			}
		}
	}
	return r.problems
}
