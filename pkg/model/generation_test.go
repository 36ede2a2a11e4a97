package model_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestGenerationConfig: its start replaces, its ends add, and its sampling is taken
// over as it is.
func TestGenerationConfig(t *testing.T) {
	t.Parallel()
	none := model.SamplingDefaults{}
	for _, test := range []struct {
		name, text string
		bos        int32
		eos        []int32
		sampling   model.SamplingDefaults
	}{
		{"silent", `{}`, 1, []int32{2}, none},
		{"null", `{"bos_token_id":null,"eos_token_id":null,"temperature":null,"top_p":null,"top_k":null,"do_sample":null}`, 1, []int32{2}, none},
		{"one more end", `{"bos_token_id":7,"eos_token_id":[2,9]}`, 7, []int32{2, 9}, none},
		{"another end", `{"eos_token_id":3}`, 1, []int32{2, 3}, none},
		{"as Qwen2.5 has it", `{"bos_token_id":13,"pad_token_id":13,"do_sample":true,"eos_token_id":[15,13],"repetition_penalty":1.05,"temperature":0.7,"top_p":0.8,"top_k":20,"transformers_version":"4.37.0"}`,
			13, []int32{2, 15, 13}, model.SamplingDefaults{Temperature: ptr[float32](0.7), TopP: ptr[float32](0.8), TopK: ptr(20), RepetitionPenalty: ptr[float32](1.05)}},
		{"as Llama 3.1 has it", `{"bos_token_id":1,"do_sample":true,"eos_token_id":[2],"temperature":0.6,"top_p":0.9}`,
			1, []int32{2}, model.SamplingDefaults{Temperature: ptr[float32](0.6), TopP: ptr[float32](0.9)}},
		{"the likeliest token", `{"do_sample":false,"temperature":0.6,"top_p":0.9}`,
			1, []int32{2}, model.SamplingDefaults{Temperature: ptr[float32](0), TopP: ptr[float32](0.9)}},
		{"the likeliest token, and no more", `{"do_sample":false}`, 1, []int32{2}, model.SamplingDefaults{Temperature: ptr[float32](0)}},
		{"ends of ranges", `{"temperature":100,"top_p":1,"min_p":1,"top_k":0,"repetition_penalty":100}`,
			1, []int32{2}, model.SamplingDefaults{Temperature: ptr[float32](100), TopP: ptr[float32](1), MinP: ptr[float32](1), TopK: ptr(0), RepetitionPenalty: ptr[float32](100)}},
		{"all tokens", `{"top_k":-1,"min_p":0}`, 1, []int32{2}, model.SamplingDefaults{TopK: ptr(0), MinP: ptr[float32](0)}},
		{"what is for others", `{"max_new_tokens":2048,"num_beams":4,"bad_words_ids":[[1]],"max_length":"x"}`, 1, []int32{2}, none},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := newCheckpoint("BF16").write(t)
			writeFile(t, filepath.Join(dir, "generation_config.json"), []byte(test.text))
			spec, err := model.LoadSpec(dir, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.eos, spec.EOS); diff != "" || spec.BOS != test.bos {
				t.Errorf("start %d, ends %v", spec.BOS, spec.EOS)
			}
			if diff := cmp.Diff(test.sampling, spec.Sampling); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefusedGenerationConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, field, says string }{
		{`{"temperature":-0.1}`, "temperature", "-0.1 is not between 0 and 100"},
		{`{"temperature":101}`, "temperature", "not between"},
		{`{"temperature":"0.7"}`, "temperature", "not a finite number"},
		{`{"top_p":0}`, "top_p", "0 is not above 0 and at most 1"},
		{`{"top_p":1e-60}`, "top_p", "not above 0"},
		{`{"top_p":1.5}`, "top_p", "at most 1"},
		{`{"min_p":2}`, "min_p", "not between 0 and 1"},
		{`{"repetition_penalty":0}`, "repetition_penalty", "not above 0 and at most 100"},
		{`{"top_k":2.5}`, "top_k", "not an integer"},
		{`{"top_k":-2}`, "top_k", "not between -1"},
		{`{"do_sample":"yes"}`, "do_sample", "neither true nor false"},
		{`version https://git-lfs.github.com/spec/v1`, "", "Git LFS"},
	} {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			dir := newCheckpoint("BF16").write(t)
			writeFile(t, filepath.Join(dir, "generation_config.json"), []byte(test.text))
			_, err := model.LoadSpec(dir, model.Options{})
			refusal{file: "generation_config.json", field: test.field, says: test.says}.check(t, err)
		})
	}
}
