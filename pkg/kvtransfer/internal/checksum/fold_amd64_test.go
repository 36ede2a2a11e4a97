package checksum_test

import (
	"math/bits"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// polynomial of CRC-32C.
const polynomial = 0x11edc6f41

// power is x^n modulo the polynomial, bit-reflected.
func power(n int) uint32 {
	remainder := uint64(1)
	for range n {
		remainder <<= 1
		if remainder>>32 != 0 {
			remainder ^= polynomial
		}
	}
	return bits.Reverse32(uint32(remainder))
}

// The assembly's constants follow from the derivation in its first comment.
func TestConstants(t *testing.T) {
	text, err := os.ReadFile("fold_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	data := regexp.MustCompile(`(?m)^DATA (\w+)<>\+(\d+)\(SB\)/8, \$0x([0-9a-f]{16})$`)
	got := map[string]uint64{}
	for _, line := range data.FindAllStringSubmatch(string(text), -1) {
		value, err := strconv.ParseUint(line[3], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		got[line[1]+"+"+line[2]] = value
	}
	want := map[string]uint64{"foldLanes+48": 0, "foldLanes+56": 0}
	for _, fold := range []struct {
		name      string
		at, bytes int
	}{
		{"fold256", 0, 256},
		{"fold64", 0, 64},
		{"foldLanes", 0, 48},
		{"foldLanes", 16, 32},
		{"foldLanes", 32, 16},
	} {
		want[fold.name+"+"+strconv.Itoa(fold.at)] = uint64(power(8*fold.bytes + 31))
		want[fold.name+"+"+strconv.Itoa(fold.at+8)] = uint64(power(8*fold.bytes - 33))
	}
	for at, value := range want {
		if got[at] != value {
			t.Errorf("%s is %#x, want %#x", at, got[at], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d constants, want %d", len(got), len(want))
	}
}
