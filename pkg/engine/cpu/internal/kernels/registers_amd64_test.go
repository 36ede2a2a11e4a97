//go:build !asan

package kernels_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
)

// assembly is what the compiler makes of a file, by function. It has to be the one that
// the code is written around: what others keep where is their own.
func assembly(t *testing.T, file string) map[string][]string {
	compiler := cmp.Or(os.Getenv("CC"), "gcc")
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skip("no C compiler: the package was built elsewhere")
	}
	about, err := exec.Command(compiler, "-v").CombinedOutput()
	if err != nil || !strings.Contains(string(about), "gcc version 12.") {
		t.Skipf("%s is not GCC 12", compiler)
	}
	var complaint strings.Builder
	command := exec.Command(compiler, "-std=c11", "-O3", "-S", "-o", "-", file)
	command.Stderr = &complaint
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", compiler, file, err, &complaint)
	}
	functions, name := map[string][]string{}, ""
	label := regexp.MustCompile(`^([a-z]\w*)(?:\.\w+)*:`)
	for line := range strings.Lines(string(text)) {
		if m := label.FindStringSubmatch(line); m != nil {
			name = m[1]
		}
		functions[name] = append(functions[name], strings.TrimSpace(line))
	}
	return functions
}

// TestSumsStayInRegisters: compilers like to keep the sums of a large tile in memory,
// which costs half of its speed and shows nowhere else.
func TestSumsStayInRegisters(t *testing.T) {
	longtest.Only(t)
	tiles := []string{"thin_vnni_int8", "look_up_vnni", "thin_vnni_int4"}
	for rows := range 12 {
		tiles = append(tiles, fmt.Sprintf("tiles_vnni_int8_%d", rows+1), fmt.Sprintf("tiles_vnni_int4_%d", rows+1))
	}
	for file, names := range map[string][]string{
		"kernels_avx512.c": tiles,
		"kernels_avx2.c":   {"tile_2_2", "tile_4_1", "tile_int8_1", "tile_int8_2", "tile_int8_3", "tile_int8_4"},
	} {
		functions := assembly(t, file)
		onStack := regexp.MustCompile(`^v[a-z].*\(%r[sb]p.*%[yz]mm|^v[a-z].*%[yz]mm.*\(%r[sb]p`)
		for _, name := range names {
			products := 0
			for _, line := range functions[name] {
				if slices.ContainsFunc([]string{"vpdpbusd", "vpmaddubsw", "vfmadd"}, func(p string) bool { return strings.HasPrefix(line, p) }) {
					products++
				}
				if onStack.MatchString(line) {
					t.Errorf("%s has a vector in memory: %s", name, line)
				}
			}
			if products == 0 {
				t.Errorf("%s: %s multiplies nothing", file, name)
			}
		}
	}
}
