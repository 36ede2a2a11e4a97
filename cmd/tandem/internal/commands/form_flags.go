package commands

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

var formNames = []string{"json-object", "json-schema", "regex", "choice", "grammar"}

// formFlags say what form the output has.
type formFlags struct {
	schema, regex, choice, grammar string
	anyObject                      bool
}

func (f *formFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.anyObject, "json-object", false, "the output is a JSON object")
	fs.StringVar(&f.schema, "json-schema", "", "the output is JSON that the JSON Schema in this file describes")
	fs.StringVar(&f.regex, "regex", "", "the output matches this regular expression from its beginning to its end, in the syntax of RE2")
	fs.StringVar(&f.choice, "choice", "", "the output is one of these texts, such as yes,no")
	fs.StringVar(&f.grammar, "grammar", "", "the output is what the rule root of the grammar in this file describes, in GBNF")
	onlyOnCommandLine(cmd, formNames...)
}

// form is what the flags ask for; nil: the output may be anything.
func (f *formFlags) form(cmd *cobra.Command) (*inferencev1.StructuredOutput, error) {
	var given []string
	for _, name := range formNames {
		if cmd.Flags().Changed(name) {
			given = append(given, name)
		}
	}
	switch {
	case len(given) == 0 || given[0] == "json-object" && len(given) == 1 && !f.anyObject:
		return nil, nil
	case len(given) > 1:
		return nil, rpc.InvalidArgument(strings.ReplaceAll(given[1], "-", "_"), fmt.Sprintf("--%s is given too: pass one of them", given[0]))
	}
	switch given[0] {
	case "json-schema":
		text, err := readFormFile("json_schema", f.schema)
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: text}}, err
	case "grammar":
		text, err := readFormFile("grammar", f.grammar)
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: text}}, err
	case "regex":
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: f.regex}}, nil
	case "choice":
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: strings.Split(f.choice, ",")}}}, nil
	}
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}, nil
}

// readFormFile reads the file that a flag names.
func readFormFile(flag, file string) (string, error) {
	text, err := os.ReadFile(file)
	if err == nil && len(text) > grammar.MaxSourceBytes {
		err = fmt.Errorf("%s has %d bytes, more than %d", file, len(text), grammar.MaxSourceBytes)
	}
	if err != nil {
		return "", rpc.InvalidArgument(flag, err.Error())
	}
	return string(text), nil
}
