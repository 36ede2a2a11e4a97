package grammar_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func gbnf(text string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: text}}
}

// arithmetic is what a calculator takes.
const arithmetic = `
# A rule goes on where an alternative or brackets do.
root  ::= term (("+" | "-") term)*
term  ::= factor (
    ("*" | "/") factor
  )*
factor ::= number |
  "-"? "(" root ")"
number ::= [0-9]{1,3} ("." [0-9]+)?
`

// object is JSON, as far as this test goes.
const object = `root ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value
value ::= root | "[" ws (value ("," ws value)*)? "]" | string | "true" | "null"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\bfnrt] | "\\u" [0-9a-fA-F]{4})* "\""
ws ::= | " " | "\n" [ \t]{0,4}
`

func TestGBNF(t *testing.T) {
	tests := []struct {
		name, grammar string
		yes, no       []string
	}{
		{"text", `root ::= "yes" | "no"`, []string{"yes", "no"}, []string{"", "ye", "yesno"}},
		{"lines", "root ::= \"a\"\n  | \"b\"\n\n  | x\nx ::= \"c\"", []string{"a", "b", "c"}, nil},
		{"nothing", `root ::= "a" | `, []string{"", "a"}, []string{"b"}},
		{"escapes", `root ::= "\"\\\n\t\r\x41\u00e9\U0001F600" [\]\-\^a]`, []string{"\"\\\n\t\rAé😀]", "\"\\\n\t\rAé😀-", "\"\\\n\t\rAé😀^"}, []string{"\"\\\n\t\rAé😀b"}},
		{"classes", `root ::= [a-c_] [^a-cxé] .`, []string{"aéé"[:1] + "d\n", "_è€", "cz😀"}, []string{"dzz", "aaz", "axz", "aéz", "az"}},
		{"not in classes", `root ::= [^x-\U0010FFFFb-dca-bf]+`, []string{"gew", "\x00"}, []string{"a", "b", "c", "d", "f", "x", "😀"}},
		{"in no class", `root ::= "a" | [^b-\U0010FFFF\x00-\x62]`, []string{"a"}, []string{"\x00", "c", "😀"}},
		{"dash at the end", `root ::= [a-]+`, []string{"-a-"}, []string{"b"}},
		{"how often", `root ::= "a"? "b"+ "c"{2} "d"{1,} "e"{0,2} "f"*`, []string{"bccd", "abbccdddeeff"}, []string{"accd", "bcd", "bcc", "bccdeee"}},
		{"of brackets", `root ::= ("a" | "bc"){2,3} ("d" "e")*`, []string{"abc", "bcbca", "aadede"}, []string{"a", "aaaa", "aad"}},
		{"names", "root ::= a-1 B_2 # comment\na-1 ::= \"x\"\n\n\tB_2::=\"y\"", []string{"xy"}, []string{"x"}},
		{"carriage returns", "root ::= a\r\na ::= \"x\"\r\n", []string{"x"}, nil},
		{"of rules", `root ::= pair{3}
			pair ::= "(" pair? ")"`, []string{"()()()", "(())()((()))"}, []string{"()()", "(()()()"}},
		{"many times", `root ::= word{0,2000} "."
			word ::= "w" [a-z0-9A-Z]`, []string{".", "wa.", strings.Repeat("wa", 2000) + "."}, []string{"w.", strings.Repeat("wa", 2001) + "."}},
		{"goes on in itself", `root ::= "a" root | "b"`, []string{"b", strings.Repeat("a", 1000) + "b"}, []string{"a"}},
		{"arithmetic", arithmetic, []string{"1", "1+2*3", "-(1.5/(2-999))*7"}, []string{"", "1+", "(1", "1000", "--1", "1..5"}},
		{"object", object, []string{"{}", `{"a": [true, {"b":null}], "\u00e9\n":"😀"}`, "{\n  \"a\":{}}"}, []string{`{"a"}`, `{"a":true,}`, `["a"]`, `{"a":"` + "\n" + `"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := grammar.Compile(t.Context(), gbnf(tt.grammar), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range tt.yes {
				if !g.Accepts([]byte(text)) {
					t.Errorf("does not accept %.60q", text)
				}
			}
			for _, text := range tt.no {
				if g.Accepts([]byte(text)) {
					t.Errorf("accepts %.60q", text)
				}
			}
		})
	}
}

// What calls no rule that calls itself is as Go's own expressions have it.
func TestGBNFAgainstExpressions(t *testing.T) {
	longtest.OneGoroutine(t)
	r := rand.New(rand.NewPCG(5, 24))
	for range 300 {
		text, expression := randomGBNF(r)
		g, err := grammar.Compile(t.Context(), gbnf(text), nil)
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		want := regexp.MustCompile("^(?s:" + expression + ")$")
		for range 50 {
			output := make([]byte, r.IntN(8))
			for i := range output {
				output[i] = "abc"[r.IntN(3)]
			}
			if got := g.Accepts(output); got != want.Match(output) {
				t.Fatalf("%s\n%s\n%q: %v", text, expression, output, got)
			}
		}
	}
}

// randomGBNF is a grammar of a few rules, each of which refers to later ones, and an expression
// that means the same.
func randomGBNF(r *rand.Rand) (text, expression string) {
	const rules = 5
	expressions := make([]string, rules)
	var out strings.Builder
	var one func(rule, depth int) (string, string)
	one = func(rule, depth int) (string, string) {
		switch n := r.IntN(8); {
		case n == 0 && rule+1 < rules:
			to := rule + 1 + r.IntN(rules-rule-1)
			return fmt.Sprintf("r%d", to), "(?:" + expressions[to] + ")"
		case n == 1 && depth < 3:
			a, x := one(rule, depth+1)
			b, y := one(rule, depth+1)
			return "(" + a + " | " + b + ")", "(?:" + x + "|" + y + ")"
		case n == 2 && depth < 3:
			a, x := one(rule, depth+1)
			b, y := one(rule, depth+1)
			return "(" + a + " " + b + ")", "(?:" + x + y + ")"
		case n == 3 && depth < 3:
			a, x := one(rule, depth+1)
			often := []string{"*", "+", "?", "{2}", "{1,}", "{0,2}"}[r.IntN(6)]
			return a + often, "(?:" + x + ")" + often
		case n == 4:
			return "[^a]", "[^a]"
		}
		c := string("abc"[r.IntN(3)])
		return `"` + c + `"`, c
	}
	lines := make([]string, rules)
	for rule := rules - 1; rule >= 0; rule-- {
		a, x := one(rule, 0)
		b, y := one(rule, 0)
		expressions[rule] = x + y
		lines[rule] = fmt.Sprintf("r%d ::= %s %s", rule, a, b)
	}
	out.WriteString("root ::= r0\n" + strings.Join(lines, "\n"))
	return out.String(), expressions[0]
}

func TestWrongGBNF(t *testing.T) {
	deep := strings.Repeat("(", 200) + `"a"` + strings.Repeat(")", 200)
	var twice strings.Builder // every rule begins with the next one, in two ways
	for i := range 40 {
		fmt.Fprintf(&twice, "r%d ::= r%d \"x\" | r%d \"y\" | \"(\" r%d \")\"\n", i, i+1, i+1, i)
	}
	tests := []struct{ name, grammar, want string }{
		{"empty", "", `has no rule "root"`},
		{"no root", `a ::= "x"`, `has no rule "root"`},
		{"no such rule", "root ::= \"a\"\n  | b", `line 2: there is no rule "b"`},
		{"twice", "root ::= a\na ::= \"x\"\na ::= \"y\"", `line 3: the rule "a" stands here a second time`},
		{"not closed", `root ::= "a`, `line 1: "\"" is missing`},
		{"class not closed", `root ::= [a`, `line 1: "]" is missing`},
		{"bracket not closed", `root ::= ("a"`, `line 1: ")" is expected, not the end`},
		{"bracket not opened", `root ::= "a")`, `goes on with ")"`},
		{"no equals", `root = "a"`, `line 1: "::=" is expected behind "root", not "="`},
		{"no name", `::= "a"`, `a rule's name is expected, not ":"`},
		{"a star alone", `root ::= *`, `goes on with "*"`},
		{"backwards", `root ::= [z-a]`, `the range 'z' to 'a' is backwards`},
		{"numbers backwards", `root ::= "a"{3,2}`, "{3,2} is backwards"},
		{"too often", `root ::= "a"{2001}`, "2001 times are more than 2000"},
		{"no number", `root ::= "a"{,2}`, `a number is expected, not ","`},
		{"escape", `root ::= "\q"`, `\q is no escape`},
		{"short escape", `root ::= "\u12"`, `\u has to be followed by 4 hexadecimal digits`},
		{"surrogate", `root ::= "\ud800"`, `\ud800 is no character`},
		{"half a character", `root ::= "\xaé"`, `\xa… is no character`},
		{"tokens", `root ::= <think>`, "tokens in angle brackets are not supported"},
		{"left recursion", "root ::= list\nlist ::= list \",\" | \"a\"", `the rule "list" refers to itself before anything else`},
		{"hidden left recursion", "root ::= \"x\"? root \"a\" | \"b\"", `the rule "root" refers to itself before anything else`},
		{"never ends", `root ::= "a" root`, "nothing matches it"},
		{"too deep", "root ::= " + deep, "more than 128 brackets"},
		{"too many ways", "root ::= r0\n" + twice.String() + `r40 ::= "z" | "(" r40 ")"`, "an output can begin in more than"},
		{"too long", "root ::= \"" + strings.Repeat("a", 256<<10) + "\"", "bytes, more than"},
		{"too large", "root ::= " + strings.Repeat(`("a" | root "b"){2000} `, 50), "is too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := grammar.Compile(t.Context(), gbnf(tt.grammar), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "grammar: ") || !utf8.ValidString(err.Error()) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// An output that could be read in more and more ways ends, and does not take all memory.
func TestGBNFOfManyWays(t *testing.T) {
	g, err := grammar.Compile(t.Context(), gbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !g.Accepts([]byte("aaadbcb")) {
		t.Error("does not accept three levels")
	}
	if g.Begins([]byte(strings.Repeat("a", 100))) {
		t.Error("begins with what has 2^100 ways to go on")
	}
}

func FuzzGBNF(f *testing.F) {
	for _, seed := range []string{arithmetic, object, `root ::= "a"{2,} [^b-c\n] . | ("x")*`} {
		f.Add(seed, "1+2")
	}
	f.Fuzz(func(t *testing.T, text, output string) {
		if g, err := grammar.Compile(t.Context(), gbnf(text), nil); err == nil && len(output) < 64 {
			g.Accepts([]byte(output))
		}
	})
}
