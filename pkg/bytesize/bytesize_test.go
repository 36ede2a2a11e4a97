package bytesize_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/bytesize"
)

func TestSize(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // 0: refused
	}{
		{"1", 1}, {"1B", 1}, {"1000000", 1e6}, {"512MiB", 512 << 20}, {"2GiB", 2 << 30}, {"1TiB", 1 << 40}, {"3KiB", 3 << 10},
		{"1KB", 1e3}, {"1kB", 1e3}, {"7MB", 7e6}, {"7GB", 7e9}, {"2TB", 2e12}, {"1.5GiB", 3 << 29}, {" 64 MiB ", 64 << 20}, {".5KiB", 512},
		{"1024TiB", 1 << 50},
		{"", 0}, {"MiB", 0}, {"0", 0}, {"0GiB", 0}, {"-1", 0}, {"-1GiB", 0}, {"+1GiB", 0}, {"0.5", 0}, {"0.1B", 0}, {"1025TiB", 0},
		{"1e30", 0}, {"1e3", 0}, {"0x10", 0}, {"NaN", 0}, {"NaNMiB", 0}, {"Inf", 0}, {"infB", 0}, {"1_000", 0}, {"512M", 0}, {"512mib", 0},
		{"1 2MiB", 0}, {"1MiB2", 0}, {"1MiBMiB", 0}, {"1..2GiB", 0}, {"ten", 0}, {"9999999999999999999999", 0},
	} {
		t.Run(c.text, func(t *testing.T) {
			size := bytesize.Size(77)
			err := size.Set(c.text)
			if c.want == 0 {
				if err == nil || !strings.Contains(err.Error(), "\""+c.text+"\"") || size != 77 {
					t.Errorf("became %d, error %v", size, err)
				}
				return
			}
			if err != nil || int64(size) != c.want {
				t.Fatalf("%d, error %v; want %d", size, err, c.want)
			}
			var again bytesize.Size
			if err := again.Set(size.String()); err != nil || again != size {
				t.Errorf("%d prints as %s, which reads as %d (%v)", size, size.String(), again, err)
			}
		})
	}
	for size, want := range map[bytesize.Size]string{1 << 30: "1GiB", 3 << 29: "1536MiB", 1 << 41: "2TiB", 1000: "1000B", 0: "auto", 2048: "2KiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s, want %s", int64(size), got, want)
		}
	}
}

func FuzzSize(f *testing.F) {
	f.Add("512MiB")
	f.Add("1.5 GB")
	f.Fuzz(func(t *testing.T, text string) {
		var size, again bytesize.Size
		if size.Set(text) != nil {
			return
		}
		if size < 1 || size > 1<<50 {
			t.Fatalf("%q is %d", text, size)
		}
		if err := again.Set(size.String()); err != nil || again != size {
			t.Fatalf("%q is %d, prints as %s, which reads as %d (%v)", text, size, size.String(), again, err)
		}
	})
}

func TestText(t *testing.T) {
	for size, want := range map[int64]string{-1: "0B", 0: "0B", 1: "1B", 1023: "1023B", 3 << 10: "3KiB", 3 << 19: "1.5MiB", 5 << 28: "1.2GiB", 5 << 38: "1.2TiB", 1 << 50: "1024.0TiB"} {
		if got := bytesize.Text(size); got != want {
			t.Errorf("%d bytes are %q, want %q", size, got, want)
		}
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]float64{"10GB/s": 10e9, "500 MB/s": 500e6, "10GB": 0, "auto/s": 0, "10Gbit/s": 0, "-1GB/s": 0, "": 0} {
		got, err := bytesize.ParseRate(text)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
}
