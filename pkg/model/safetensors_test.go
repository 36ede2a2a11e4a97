package model_test

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
)

func TestParseHeader(t *testing.T) {
	t.Parallel()
	got, err := model.ParseHeader("x.safetensors", []byte(`{"b":{"dtype":"F32","shape":[2,1],"data_offsets":[6,14]},"__metadata__":{"format":"pt"},`+
		`"scalar":{"dtype":"BF16","shape":[],"data_offsets":[4,6]},"none":{"dtype":"I64","shape":[0,3],"data_offsets":[4,4]},"a":{"data_offsets":[0,4],"shape":[2],"dtype":"F16"}}  `), 14)
	if err != nil {
		t.Fatal(err)
	}
	want := []model.HeaderEntry{
		{Name: "a", DType: "F16", Shape: []int{2}, Start: 0, End: 4},
		{Name: "none", DType: "I64", Shape: []int{0, 3}, Start: 4, End: 4},
		{Name: "scalar", DType: "BF16", Shape: []int{}, Start: 4, End: 6},
		{Name: "b", DType: "F32", Shape: []int{2, 1}, Start: 6, End: 14},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedHeader(t *testing.T) {
	t.Parallel()
	const dataBytes = 8
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"dtype":%q,"shape":%s,"data_offsets":%s}`, dtype, shape, offsets)
	}
	whole := entry("F32", "[2]", "[0,8]")
	for _, test := range []struct {
		name, header, tensor, says string
	}{
		{"empty", ``, "", "not valid safetensors JSON"},
		{"a list", `[]`, "", "not an object"},
		{"cut short", `{"a":` + whole, "", "not valid safetensors JSON"},
		{"cut in an entry", `{"a":{"dtype"`, "a", "not valid safetensors JSON"},
		{"another object after it", `{"a":` + whole + `}{}`, "", "2 more bytes"},
		{"no tensors, but data", `{}`, "", "8 bytes of data, but the header accounts for 0"},
		{"the same name twice", `{"a":` + whole + `,"a":` + whole + `}`, "a", "appears twice"},
		{"the same name in escapes", `{"a":` + whole + `,"\u0061":` + whole + `}`, "a", "appears twice"},
		{"overlap", `{"a":` + entry("F32", "[1]", "[0,4]") + `,"b":` + entry("F32", "[1]", "[2,6]") + `}`, "b", "overlap"},
		{"the same bytes twice", `{"a":` + whole + `,"b":` + whole + `}`, "b", "overlap"},
		{"a hole", `{"a":` + entry("F16", "[1]", "[0,2]") + `,"b":` + entry("F32", "[1]", "[4,8]") + `}`, "b", "ends at 2"},
		{"a hole at the start", `{"a":` + entry("F32", "[1]", "[4,8]") + `}`, "a", "ends at 0"},
		{"bytes left over", `{"a":` + entry("F32", "[1]", "[0,4]") + `}`, "", "accounts for 4"},
		{"out of the file", `{"a":` + entry("F32", "[3]", "[0,12]") + `}`, "a", "outside the file"},
		{"far out of the file", `{"a":` + entry("U8", "[4]", fmt.Sprintf("[%d,%d]", math.MaxInt64-4, math.MaxInt64)) + `}`, "a", "outside the file"},
		{"end before start", `{"a":` + entry("F32", "[2]", "[8,0]") + `}`, "a", "not a start and an end"},
		{"negative start", `{"a":` + entry("F32", "[2]", "[-8,0]") + `}`, "a", "not a start and an end"},
		{"one offset", `{"a":` + entry("F32", "[2]", "[8]") + `}`, "a", "not a start and an end"},
		{"offset over 64 bits", `{"a":` + entry("F32", "[2]", "[0,99999999999999999999]") + `}`, "a", "header entry"},
		{"offset with a fraction", `{"a":` + entry("F32", "[2]", "[0,8.5]") + `}`, "a", "header entry"},
		{"shape and bytes disagree", `{"a":` + entry("F32", "[3]", "[0,8]") + `}`, "a", "takes 12 bytes, but data_offsets give it 8"},
		{"shape that overflows", `{"a":` + entry("F32", "[4611686018427387904,4]", "[0,0]") + `}`, "a", "larger than any file"},
		{"shape that wraps around", `{"a":` + entry("F32", "[4294967296,4294967296]", "[0,0]") + `}`, "a", "larger than any file"},
		{"negative dimension", `{"a":` + entry("F32", "[-2]", "[0,8]") + `}`, "a", "negative dimension"},
		{"no shape", `{"a":{"dtype":"F32","data_offsets":[0,8]}}`, "a", "has no shape"},
		{"null shape", `{"a":` + entry("F32", "null", "[0,8]") + `}`, "a", "has no shape"},
		{"nine dimensions", `{"a":` + entry("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + `}`, "a", "9 dimensions"},
		{"thousands of dimensions", `{"a":` + entry("F32", "[1"+strings.Repeat(",1", 4000)+"]", "[0,8]") + `}`, "a", "more than 4096"},
		{"thousands of offsets", `{"a":` + entry("F32", "[2]", "[0"+strings.Repeat(",1", 500)+"]") + `}`, "a", "and 493 more"},
		{"unknown type", `{"a":` + entry("Q4_K", "[2]", "[0,8]") + `}`, "a", `element type "Q4_K"`},
		{"type in another case", `{"a":` + entry("f32", "[2]", "[0,8]") + `}`, "a", `element type "f32"`},
		{"an entry that is a number", `{"a":8}`, "a", "header entry"},
		{"a null entry", `{"a":null}`, "a", "has no shape"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := model.ParseHeader("dir/x.safetensors", []byte(test.header), dataBytes)
			refusal{file: "x.safetensors", tensor: test.tensor, says: test.says}.check(t, err)
		})
	}
}

// TestHeaderErrorsAreShort: names out of a file do not flood a log.
func TestHeaderErrorsAreShort(t *testing.T) {
	t.Parallel()
	_, err := model.ParseHeader("x", []byte(`{"`+strings.Repeat(`\n`, 1e5)+`":1}`), 0)
	if err == nil || len(err.Error()) > 1000 || strings.ContainsRune(err.Error(), '\n') {
		t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}`), int64(8))
	f.Add([]byte(`{"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[],"data_offsets":[4,5]}} `), int64(5))
	f.Add([]byte(`{"a":{"dtype":"F64","shape":[9223372036854775807,3],"data_offsets":[0,9223372036854775807]}}`), int64(math.MaxInt64))
	f.Add([]byte(strings.Repeat("8", 3000)), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, dataBytes int64) {
		entries, err := model.ParseHeader("x", header, dataBytes)
		if err != nil {
			var is *model.Error
			if !errors.As(err, &is) || len(err.Error()) > 2000 {
				t.Fatalf("error of %d bytes: %v", len(err.Error()), err)
			}
			return
		}
		var at int64
		names := map[string]bool{}
		for _, e := range entries {
			if e.Start != at || e.End < e.Start || e.End > dataBytes || len(e.Shape) > 8 || names[e.Name] {
				t.Fatalf("accepted %+v after byte %d", e, at)
			}
			names[e.Name] = true
			at = e.End
		}
		if at != dataBytes {
			t.Fatalf("%d bytes of %d", at, dataBytes)
		}
	})
}

// FuzzOpen puts any bytes where the weights are: no panic, and an error that
// names the file.
func FuzzOpen(f *testing.F) {
	f.Add([]byte("version https://git-lfs"))
	f.Add(rawSafetensors([]byte(`{}`), nil))
	f.Add(rawSafetensors([]byte(`{"model.embed_tokens.weight":{"dtype":"BF16","shape":[16,8],"data_offsets":[0,256]}}`), make([]byte, 256)))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newCheckpoint("BF16")
		c.tensors = nil
		dir := c.write(t)
		writeFile(t, dir+"/model.safetensors", data)
		_, err := model.Open(dir, model.Options{})
		var is *model.Error
		if !errors.As(err, &is) || is.File != dir+"/model.safetensors" {
			t.Fatal(err)
		}
	})
}

// FuzzIndex puts any bytes where the index is: it never leads to a file outside
// of the directory, which would be there in vain.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"model.norm.weight":"../model.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"model.norm.weight":"model-00001-of-00002.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newCheckpoint("BF16")
		c.shards = 2
		dir := c.write(t)
		writeFile(t, dir+"/model.safetensors.index.json", data)
		_, err := model.LoadSpec(dir, model.Options{})
		var is *model.Error
		if err != nil && (!errors.As(err, &is) || filepath.Dir(is.File) != dir) {
			t.Fatal(err)
		}
	})
}
