package jinja

// expression is a node that has a value.
type expression interface{}

type (
	constant struct{ value any }
	name     struct {
		text string
		line int
	}
	sequence struct {
		items []expression
		tuple bool
	}
	mapping struct{ keys, values []expression }
	unary   struct {
		op   string
		of   expression
		line int
	}
	binary struct {
		op          string
		left, right expression
		line        int
	}
	// comparison is a chain: first op[0] rest[0] op[1] rest[1] …
	comparison struct {
		first expression
		ops   []string
		rest  []expression
		line  int
	}
	conditional struct{ then, test, otherwise expression } // otherwise may be nil
	attribute   struct {
		of   expression
		name string
		line int
	}
	item struct {
		of, key expression
		line    int
	}
	slice struct {
		of                expression
		start, stop, step expression // each may be nil
		line              int
	}
	arguments struct {
		positional []expression
		names      []string
		named      []expression
		spread     expression // *expression, or nil
	}
	call struct {
		of   expression
		args arguments
		line int
	}
	filtered struct {
		of   expression // nil: what a block printed
		name string
		args arguments
		line int
	}
	tested struct {
		of     expression
		name   string
		args   arguments
		negate bool
		line   int
	}
)

// statement is a node that is carried out.
type statement interface{}

type (
	data   struct{ text string }
	output struct {
		value expression
		line  int
	}
	branch struct {
		test expression // nil: else
		body []statement
		line int
	}
	ifStatement  struct{ branches []branch }
	forStatement struct {
		target    target
		over      expression
		test      expression // may be nil
		recursive bool
		body      []statement
		otherwise []statement
		line      int
	}
	setStatement struct {
		target target
		value  expression // nil: body
		filter expression // filters over what body prints; nil: none
		body   []statement
		line   int
	}
	macroStatement struct {
		name     string
		names    []string
		defaults []expression // nil where there is none
		body     []statement
		line     int
	}
	callStatement struct {
		call   *call
		caller *macroStatement
		line   int
	}
	withStatement struct {
		targets []target
		values  []expression
		body    []statement
		line    int
	}
	filterStatement struct {
		filter expression
		body   []statement
		line   int
	}
	scopeStatement    struct{ body []statement }
	breakStatement    struct{}
	continueStatement struct{}
)

// target is what is assigned to: a name, an attribute of a namespace, or several
// targets.
type target struct {
	name      string
	attribute string
	several   []target
}
