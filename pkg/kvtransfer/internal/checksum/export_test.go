package checksum

// Path is a path, by name.
type Path struct {
	Name         string
	Update       func(sum uint32, p []byte) uint32
	Copy, Stream func(dst, src []byte, sum uint32) uint32
}

// Paths returns what the processor supports, best first.
func Paths() []Path {
	names := map[path]string{standard: "standard", avx2: "avx2", avx512: "avx512"}
	var all []Path
	for _, p := range paths() {
		all = append(all, Path{names[p], p.update, p.copy, p.stream})
	}
	return all
}
