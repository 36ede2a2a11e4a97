package model_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

const fable = "../../models/fable"

func TestOpenBundledModel(t *testing.T) {
	t.Parallel()
	m, err := model.Open(fable, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	t.Log(m.Spec())
}
