package grammar

import (
	"fmt"
	"math/rand/v2"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

type form struct {
	name   string
	source *inferencev1.StructuredOutput
}

// forms are common forms of output.
var forms = []form{
	{"any object", &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}},
	{"person", ofSchema(`{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"married":{"type":"boolean"},
		"tags":{"type":"array","items":{"type":"string"}}},"required":["name","age","married","tags"],"additionalProperties":false}`)},
	{"mail address", ofSchema(`{"type":"string","format":"email"}`)},
	{"order", ofSchema(`{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{6}$"},"date":{"type":"string","format":"date"},"status":{"enum":["open","paid","sent"]},
		"lines":{"type":"array","minItems":1,"items":{"type":"object","properties":{"sku":{"type":"string","minLength":3,"maxLength":20},"count":{"type":"integer","minimum":1},
		"price":{"type":"number","minimum":0},"note":{"type":"string","maxLength":200}},"required":["sku","count","price"],"additionalProperties":false}}},
		"required":["id","date","status","lines"],"additionalProperties":false}`)},
	{"tree", ofSchema(`{"$defs":{"node":{"type":"object","properties":{"label":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"},"maxItems":4}},
		"required":["label","children"],"additionalProperties":false}},"$ref":"#/$defs/node"}`)},
	{"open object", ofSchema(`{"type":"object","properties":{"title":{"type":"string"},"body":{"type":"string"},"score":{"type":"number"}},"required":["title"]}`)},
	{"variants", ofSchema(`{"anyOf":[{"type":"object","properties":{"tool":{"const":"search"},"query":{"type":"string"},"limit":{"type":"integer"}},"required":["tool","query"],"additionalProperties":false},
		{"type":"object","properties":{"tool":{"const":"open"},"url":{"type":"string"},"lines":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2}},"required":["tool","url"],"additionalProperties":false},
		{"type":"object","properties":{"tool":{"const":"answer"},"text":{"type":"string"}},"required":["tool","text"],"additionalProperties":false}]}`)},
	{"arithmetic", &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: `root ::= term ([-+] term)*
		term ::= factor ([*/] factor)*
		factor ::= [0-9]+ ("." [0-9]+)? | "-"? "(" root ")"`}}},
	{"10 kB", large(0)},
	{"calls in free text", &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: &inferencev1.StructuralTags{
		Triggers: []string{"<tool_call>"}, Separator: "\n", Repeats: true,
		Tags: []*inferencev1.StructuralTag{{
			Begin: "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ", End: "}\n</tool_call>",
			JsonSchema: `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city"],"additionalProperties":false}`,
		}},
	}}}},
}

// large is a schema of about ten kilobytes. Schemas of different numbers differ.
func large(number int) *inferencev1.StructuredOutput {
	var b strings.Builder
	fmt.Fprintf(&b, `{"title":"schema %d","type":"object","additionalProperties":false,"properties":{`, number)
	var required []string
	for i := 0; b.Len() < 10_000; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		name := fmt.Sprintf("field_%d_%d", number, i)
		kind := []string{
			`{"type":"string","description":"What the customer calls it."}`, `{"type":"integer","minimum":0,"maximum":100000}`, `{"enum":["low","medium","high"]}`,
			`{"type":"array","items":{"type":"object","properties":{"key":{"type":"string","maxLength":64},"value":{"type":"number"}},"required":["key","value"],"additionalProperties":false}}`,
			`{"type":["string","null"],"maxLength":120}`, `{"type":"boolean"}`,
		}[i%6]
		fmt.Fprintf(&b, "%q:%s", name, kind)
		if i%2 == 0 {
			required = append(required, fmt.Sprintf("%q", name))
		}
	}
	fmt.Fprintf(&b, `},"required":[%s]}`, strings.Join(required, ","))
	return ofSchema(b.String())
}

// Synthetic makes the texts of a vocabulary: each byte, the pieces of JSON, numbers of up to
// three digits, and words about as long as those of models, some in another script.
func Synthetic(size int) [][]byte {
	out := [][]byte{eos: nil}
	seen := map[string]bool{}
	add := func(text string) {
		if len(out) < size && !seen[text] {
			seen[text] = true
			out = append(out, []byte(text))
		}
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for i := range 1000 {
		add(fmt.Sprint(i))
		add(fmt.Sprintf("%03d", i))
	}
	for _, a := range []string{`"`, `",`, `":`, `"}`, `"]`, `"}]`, `"},`, `{"`, `[{"`, `["`, `, "`, `": "`, `": `, `":"`, `":{"`, `":[`, `","`, `}`, `},`, `}}`, `]`, `],`, `]}`, `:`, `,`, "\n"} {
		for _, b := range []string{"", " ", "\n", "\n ", "\n  ", "\n    ", "\n        ", "\n\n", "\t", ";", ")", ");", "."} {
			add(a + b)
		}
	}
	for n := 1; n <= 80; n++ {
		add(strings.Repeat(" ", n))
	}
	r := rand.New(rand.NewPCG(5, 6))
	scripts := [][]rune{[]rune("etaoinshrdlucmfwypvbgkjqxz"), []rune("оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъ"), []rune("的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年")}
	for len(out) < size {
		letters := scripts[0]
		if n := r.IntN(8); n < 2 {
			letters = scripts[1+n]
		}
		var text strings.Builder
		if r.IntN(2) == 0 {
			text.WriteByte(' ')
		}
		for i := range 1 + r.IntN(3) + r.IntN(4) + r.IntN(4) {
			letter := letters[min(r.IntN(len(letters)), r.IntN(len(letters)))]
			if i == 0 && r.IntN(4) == 0 && letter < 128 {
				letter -= 'a' - 'A'
			}
			text.WriteRune(letter)
		}
		if r.IntN(50) == 0 {
			text.WriteString([]string{`":`, `",`, `"`, `="`, "()", "_", "-", "\n", "."}[r.IntN(9)])
		}
		add(text.String())
	}
	return out
}
