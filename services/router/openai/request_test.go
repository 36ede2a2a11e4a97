package openai_test

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const hi = `"messages":[{"role":"user","content":"hi"}]`

// What requests become.
func TestTranslates(t *testing.T) {
	const user = `conversation{messages{role:"user" content:"hi"}}`
	for _, c := range []struct{ name, path, body, want string }{
		{"chat", chats, `{"model":"m",` + hi + `}`, `model:"m" sampling{} ` + user},
		{"sampling", chats, `{` + hi + `,"temperature":0.5,"top_p":0.25,"min_p":0.125,"top_k":7,"seed":-2,"presence_penalty":1,"frequency_penalty":-2,"repetition_penalty":1.5}`,
			`sampling{temperature:0.5 top_p:0.25 min_p:0.125 top_k:7 seed:18446744073709551614 presence_penalty:1 frequency_penalty:-2 repetition_penalty:1.5} ` + user},
		{"all of the likeliest", chats, `{` + hi + `,"top_k":-1}`, `sampling{top_k:0} ` + user},
		{"a random seed, as vLLM has it", completions, `{"prompt":"hi","seed":-1}`, `sampling{} prompt:"hi"`},
		{"the largest seed", chats, `{` + hi + `,"seed":18446744073709551615}`, `sampling{seed:18446744073709551615} ` + user},
		{"zero is given", chats, `{` + hi + `,"temperature":0,"seed":0}`, `sampling{temperature:0 seed:0} ` + user},
		{"null is not given", chats, `{` + hi + `,"temperature":null,"stop":null,"n":null,"stream":null,"tools":null,"logit_bias":null,"response_format":null,"max_tokens":null}`, `sampling{} ` + user},
		{"any form", chats, `{` + hi + `,"response_format":{"type":"text"}}`, `sampling{} ` + user},
		{"an object", chats, `{` + hi + `,"response_format":{"type":"json_object"}}`, `sampling{} structured_output{json_object:true} ` + user},
		{"a schema, as it is written", chats, `{` + hi + `,"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object","properties":{"b":{},"a":{}}}}}}`,
			`sampling{} structured_output{json_schema:"{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}"} ` + user},
		{"vLLM's schema", completions, `{"prompt":"hi","guided_json":{"type":"null"}}`, `sampling{} structured_output{json_schema:"{\"type\":\"null\"}"} prompt:"hi"`},
		{"vLLM's schema as a string", completions, `{"prompt":"hi","structured_outputs":{"json":"{}"}}`, `sampling{} structured_output{json_schema:"{}"} prompt:"hi"`},
		{"an expression", completions, `{"prompt":"hi","guided_regex":"a+"}`, `sampling{} structured_output{regex:"a+"} prompt:"hi"`},
		{"a grammar", completions, `{"prompt":"hi","guided_grammar":"root ::= [a]"}`, `sampling{} structured_output{grammar:"root ::= [a]"} prompt:"hi"`},
		{"a grammar among forms", completions, `{"prompt":"hi","structured_outputs":{"grammar":"root ::= [a]"}}`, `sampling{} structured_output{grammar:"root ::= [a]"} prompt:"hi"`},
		{"a choice", completions, `{"prompt":"hi","guided_choice":["a","b"],"guided_regex":"","guided_json":{}}`, `sampling{} structured_output{choice{texts:"a" texts:"b"}} prompt:"hi"`},
		{"one stop", chats, `{` + hi + `,"stop":"x"}`, `sampling{} stop:"x" ` + user},
		{"stops", chats, `{` + hi + `,"stop":["x","y"],"stop_token_ids":[3],"ignore_eos":true}`, `sampling{} stop:"x" stop:"y" stop_token_ids:3 ignore_eos:true ` + user},
		{"the newer limit counts", chats, `{` + hi + `,"max_tokens":3,"max_completion_tokens":4}`, `sampling{} max_tokens:4 ` + user},
		{"the older limit", chats, `{` + hi + `,"max_tokens":1e1}`, `sampling{} max_tokens:10 ` + user},
		{"bias", chats, `{` + hi + `,"logit_bias":{"5":-100,"foo":0}}`, `sampling{logit_bias{key:5 value:-100}} ` + user},
		{"likelihoods", chats, `{` + hi + `,"logprobs":true,"top_logprobs":3}`, `sampling{} logprobs:3 ` + user},
		{"likelihoods of the drawn", chats, `{` + hi + `,"logprobs":true}`, `sampling{} logprobs:0 ` + user},
		{"of vLLM", chats, `{` + hi + `,"priority":5,"cache_salt":"s","min_tokens":0,"bad_words":[],"chat_template":"","documents":[],"add_special_tokens":false,"echo":false,"skip_special_tokens":true,"allowed_token_ids":null}`, `sampling{} priority:-5 cache_salt:"s" ` + user},
		{"exactly so many", chats, `{` + hi + `,"min_tokens":5,"max_tokens":5,"ignore_eos":true}`, `sampling{} max_tokens:5 ignore_eos:true min_tokens:5 ` + user},
		{"at least", completions, `{"prompt":"hi","min_tokens":5,"stop":"x","typical_p":0.5,"top_p":0}`, `sampling{top_p:0 typical_p:0.5} stop:"x" min_tokens:5 prompt:"hi"`},
		{"of nobody", chats, `{` + hi + `,"store":true,"metadata":{"a":"b"},"what":[1],"reasoning_effort":"low","modalities":["text"],"audio":{},"stream_options":{"include_usage":true}}`, `sampling{} ` + user},
		{"tools that may not be called", chats, `{` + hi + `,"tools":[{"type":"function"}],"tool_choice":"none","functions":[{}],"function_call":"none"}`, `sampling{} ` + user},
		{"tools", chats, `{` + hi + `,` + someTools + `}`, `sampling{} conversation{messages{role:"user" content:"hi"} ` + ourTools + ` tool_choice{}}`},
		{"required, one", chats, `{` + hi + `,` + someTools + `,"tool_choice":"required","parallel_tool_calls":false}`, `sampling{} conversation{messages{role:"user" content:"hi"} ` + ourTools + ` tool_choice{required:true single:true}}`},
		{"a tool", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"function","function":{"name":"g"}}}`, `sampling{} conversation{messages{role:"user" content:"hi"} ` + ourTools + ` tool_choice{required:true single:true functions:"g"}}`},
		{"some of the tools", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}}}`, `sampling{} conversation{messages{role:"user" content:"hi"} ` + ourTools + ` tool_choice{required:true functions:"f"}}`},
		{"a function", chats, `{` + hi + `,"functions":[{"name":"f"}],"function_call":{"name":"f"}}`, `sampling{} conversation{messages{role:"user" content:"hi"} tools_json:'{"type":"function","function":{"name":"f"}}' tool_choice{required:true single:true functions:"f"}}`},
		{"calls of functions", chats, `{"messages":[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"r"}]}`,
			`sampling{} conversation{messages{role:"assistant" tool_calls{fields{key:"id" value{string_value:"function0"}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"f"}} fields{key:"arguments" value{string_value:"{}"}}}}}} no_content:true} messages{role:"tool" name:"f" content:"r" tool_call_id:"function0"}}`},
		{"no tools", chats, `{` + hi + `,"tools":[],"tool_choice":"auto"}`, `sampling{} ` + user},
		{"template", chats, `{` + hi + `,"chat_template_kwargs":{"enable_thinking":false}}`,
			`sampling{} conversation{messages{role:"user" content:"hi"} template_arguments{fields{key:"enable_thinking" value{bool_value:false}}}}`},
		{"go on", chats, `{"messages":[{"role":"assistant","content":"so"}],"continue_final_message":true,"add_generation_prompt":false}`,
			`sampling{} conversation{messages{role:"assistant" content:"so"} continue_last_message:true}`},
		{"roles", chats, `{"messages":[{"role":"developer","content":"a","name":"n"},{"role":"system","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"assistant","refusal":"no"},{"role":"tool","tool_call_id":"t","content":"r"}]}`,
			`sampling{} conversation{messages{role:"system" content:"a" name:"n"} messages{role:"system" content:"b\nc"} messages{role:"assistant" content:"no"} messages{role:"tool" content:"r" tool_call_id:"t"}}`},
		{"reasoning", chats, `{"messages":[{"role":"assistant","content":"a","reasoning_content":"b"},{"role":"assistant","content":"c","reasoning":"d"},{"role":"assistant","content":"e","reasoning":"f","reasoning_content":"g"},{"role":"user","content":"h","reasoning":"i"}]}`,
			`sampling{} conversation{messages{role:"assistant" content:"a" reasoning_content:"b"} messages{role:"assistant" content:"c" reasoning_content:"d"} messages{role:"assistant" content:"e" reasoning_content:"g"} messages{role:"user" content:"h"}}`},
		{"calls", chats, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{\"x\":9007199254740993}"}}]}]}`,
			`sampling{} conversation{messages{role:"assistant" tool_calls{fields{key:"id" value{string_value:"t"}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"f"}} fields{key:"arguments" value{string_value:"{\"x\":9007199254740993}"}}}}}} no_content:true}}`},
		{"a call that was cut", chats, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{\"x\": 1"}}]}]}`,
			`sampling{} conversation{messages{role:"assistant" tool_calls{fields{key:"id" value{string_value:"t"}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"f"}} fields{key:"arguments" value{string_value:"{\"x\": 1"}}}}}} no_content:true}}`},
		{"calls as objects", chats, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}},{"function":{"name":"g"}}]}]}`,
			`sampling{} conversation{messages{role:"assistant"
			tool_calls{fields{key:"id" value{string_value:""}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"f"}} fields{key:"arguments" value{string_value:"{\"x\":1}"}}}}}}
			tool_calls{fields{key:"id" value{string_value:""}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"g"}} fields{key:"arguments" value{string_value:"{}"}}}}}} no_content:true}}`},
		{"calls beside an empty text", chats, `{"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f"}}]}]}`,
			`sampling{} conversation{messages{role:"assistant"
			tool_calls{fields{key:"id" value{string_value:""}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"f"}} fields{key:"arguments" value{string_value:"{}"}}}}}}}}`},
		{"numbers of a template", chats, `{` + hi + `,"chat_template_kwargs":{"a":9007199254740992,"b":[0.1,1e300]}}`,
			`sampling{} conversation{messages{role:"user" content:"hi"} template_arguments{fields{key:"a" value{number_value:9007199254740992}} fields{key:"b" value{list_value{values{number_value:0.1} values{number_value:1e300}}}}}}`},
		{"completion", completions, `{"prompt":"hi","logprobs":2,"best_of":1,"suffix":""}`, `sampling{} logprobs:2 prompt:"hi"`},
		{"tokens", completions, `{"prompt":[1,2]}`, `sampling{} token_ids{ids:1 ids:2}`},
		{"one of several", completions, `{"prompt":["hi"],"add_special_tokens":false}`, `sampling{} prompt:"hi" no_special_tokens:true`},
		{"lists of tokens", completions, `{"prompt":[[1]]}`, `sampling{} token_ids{ids:1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{words: []string{"a"}}
			if w := ask(t, f, http.MethodPost, c.path, c.body); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			want := new(inferencev1.GenerateRequest)
			if err := prototext.Unmarshal([]byte(c.want), want); err != nil {
				t.Fatal(err)
			}
			if got := f.only(t); !proto.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// What is refused, and by which name. Nothing of it reaches the backend.
func TestRefuses(t *testing.T) {
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	for _, c := range []struct{ name, path, body, param, message string }{
		{"nothing", chats, ``, "", "the body is empty"},
		{"no JSON", chats, "{\n \"model\": }", "", "line 2, column 11"},
		{"half of it", chats, `{"model":"m`, "", "ends in the middle"},
		{"no object", chats, `[]`, "", "not a JSON object"},
		{"null", chats, `null`, "", "not a JSON object"},
		{"no UTF-8", chats, "{\"model\":\"\xff\"}", "", "UTF-8"},
		{"deep", chats, `{"x":` + deep + `}`, "", "64 arrays and objects"},
		{"many members", chats, `{"x":[` + strings.Repeat(`{"":0,"a":0},`, 1<<16) + `0]}`, "", "131072 members"},
		{"many arrays", chats, `{"x":[` + strings.Repeat(`[],`, 1<<17) + `0]}`, "", "131072 arrays"},
		{"arrays for a template", chats, `{` + hi + `,"chat_template_kwargs":{"x":[` + strings.Repeat(`[],`, 1<<14) + `0]}}`, "chat_template_kwargs", "16384 values"},
		{"numbers for a template", chats, `{` + hi + `,"chat_template_kwargs":{"x":[` + strings.Repeat(`1,`, 1<<14) + `0]}}`, "chat_template_kwargs", "16384 values"},
		{"numbers in arguments", chats, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"x\":[` + strings.Repeat(`1,`, 1<<13) + `0]}"}}]},{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"x\":[` + strings.Repeat(`1,`, 1<<13) + `0]}"}}]}]}`, "messages[1].tool_calls[0].function.arguments", "16384 values"},
		{"deep arguments", chats, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"x\":` + deep + `}"}}]}]}`, "messages[0].tool_calls[0].function.arguments", "64 arrays"},
		{"inexact", chats, `{` + hi + `,"chat_template_kwargs":{"x":[{"y":9007199254740993}]}}`, "chat_template_kwargs", "9007199254740993"},
		{"many parts", chats, `{"messages":[{"role":"user","content":[` + strings.Repeat(`0,`, 1<<16) + `0]}]}`, "messages[0].content", "65537 elements"},
		{"many stops", chats, `{` + hi + `,"stop":[` + strings.Repeat(`"",`, 1<<16) + `""]}`, "stop", "65537 elements"},
		{"no stop", chats, `{` + hi + `,"stop":["null",null]}`, "stop[1]", "null"},
		{"no stop token", chats, `{` + hi + `,"stop_token_ids":[5,null]}`, "stop_token_ids[1]", "null"},
		{"no token", completions, `{"prompt":[1, 2, null]}`, "prompt[2]", "null"},
		{"no token in a list", completions, `{"prompt":[[1],[2,null]]}`, "prompt[1][1]", "null"},
		{"no list", completions, `{"prompt":[[1],null]}`, "prompt[1]", "null"},
		{"no text", completions, `{"prompt":["null",null]}`, "prompt[1]", "null"},
		{"no messages", chats, `{}`, "messages", "missing"},
		{"many messages", chats, `{"messages":[` + strings.Repeat(`0,`, 1<<16) + `0]}`, "messages", "65537 elements"},
		{"a message of text", chats, `{"messages":["hi"]}`, "messages[0]", "an object"},
		{"role", chats, `{"messages":[{"role":"user","content":""},{"role":"king","content":""}]}`, "messages[1].role", `"king"`},
		{"no content", chats, `{"messages":[{"role":"user"}]}`, "messages[0].content", "missing"},
		{"content", chats, `{"messages":[{"role":"user","content":5}]}`, "messages[0].content", "a string or an array"},
		{"part without a type", chats, `{"messages":[{"role":"user","content":[{"text":"hi"}]}]}`, "messages[0].content[0].type", "is missing; give one of refusal, text"},
		{"tier", chats, `{"messages":[{"role":"user","content":"hi"}],"service_tier":"ultrafast"}`, "service_tier", "there are auto, default, scale, priority, fast and flex"},
		{"image", chats, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, "messages[0].content[0].type", `"image_url"`},
		{"custom call", chats, `{"messages":[{"role":"assistant","tool_calls":[{"type":"custom"}]}]}`, "messages[0].tool_calls[0].type", `"custom"`},
		{"arguments", chats, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[1]}}]}]}`, "messages[0].tool_calls[0].function.arguments", "a string or an object"},
		{"cut arguments", chats, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":[` + strings.Repeat(`1,`, 1<<14) + `"}}]}]}`, "messages[0].tool_calls[0].function.arguments", "16384 values"},
		{"a user's calls", chats, `{"messages":[{"role":"user","content":"","tool_calls":[{}]}]}`, "messages[0].tool_calls", "assistant"},
		{"tools", chats, `{` + hi + `,"tools":[{}]}`, "tools[0].type", "is missing"},
		{"a tool of another kind", chats, `{` + hi + `,"tools":[{"type":"web_search"}]}`, "tools[0].type", "functions only"},
		{"no function", chats, `{` + hi + `,"tools":[{"type":"function"}]}`, "tools[0].function", "is missing"},
		{"no name", chats, `{` + hi + `,"tools":[{"type":"function","function":{}}]}`, "tools[0].function.name", "is missing"},
		{"parameters", chats, `{` + hi + `,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]}`, "tools[0].function.parameters", "object"},
		{"functions", chats, `{` + hi + `,"functions":[{}]}`, "functions[0].name", "is missing"},
		{"both", chats, `{` + hi + `,` + someTools + `,"functions":[{"name":"f"}]}`, "functions", "tools alone"},
		{"required", chats, `{` + hi + `,"tool_choice":"required"}`, "tool_choice", "needs tools"},
		{"another choice", chats, `{` + hi + `,` + someTools + `,"tool_choice":"any"}`, "tool_choice", `"required"`},
		{"an unknown function", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"function","function":{"name":"x"}}}`, "tool_choice", `"x" is none of the tools`},
		{"a custom tool", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"custom"}}`, "tool_choice.type", `"custom"`},
		{"no function in the choice", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"function"}}`, "tool_choice.function", "is missing"},
		{"a mode", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"x","tools":[]}}}`, "tool_choice.allowed_tools.mode", `"auto" or "required"`},
		{"allowed tools", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{}]}}}`, "tool_choice.allowed_tools.tools[0].type", "is missing"},
		{"none allowed", chats, `{` + hi + `,` + someTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto"}}}`, "tool_choice.allowed_tools.tools", "is missing"},
		{"parallel", chats, `{` + hi + `,` + someTools + `,"parallel_tool_calls":1}`, "parallel_tool_calls", "true or false"},
		{"form", chats, `{` + hi + `,"response_format":{"type":"json_schema"}}`, "response_format.json_schema", "a name and a schema"},
		{"unknown form", chats, `{` + hi + `,"response_format":{"type":"yaml"}}`, "response_format", "yaml"},
		{"form without a schema", chats, `{` + hi + `,"response_format":{"type":"json_schema","json_schema":{"name":"a"}}}`, "response_format.json_schema.schema", "missing"},
		{"form without a name", completions, `{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`, "response_format.json_schema.name", "missing"},
		{"two forms", chats, `{` + hi + `,"response_format":{"type":"json_object"},"guided_regex":"a"}`, "guided_regex", "response_format"},
		{"two of vLLM's forms", chats, `{` + hi + `,"structured_outputs":{"regex":"a","choice":["b"]}}`, "structured_outputs", "one of them"},
		{"any object and a form", chats, `{` + hi + `,"structured_outputs":{"json_object":true,"regex":"a"}}`, "structured_outputs", "one of them"},
		{"unknown form of vLLM", chats, `{` + hi + `,"structured_outputs":{"foo":1}}`, "structured_outputs.foo", "is no form"},
		{"form of vLLM", chats, `{` + hi + `,"structured_outputs":{"structural_tag":"a"}}`, "structured_outputs.structural_tag", "not supported"},
		{"sound", chats, `{` + hi + `,"modalities":["text","audio"]}`, "modalities", "text"},
		{"template", chats, `{` + hi + `,"chat_template":"{{ messages[0].content }}"}`, "chat_template", "--chat-template"},
		{"template as an object", chats, `{` + hi + `,"chat_template":{"a":1}}`, "chat_template", "--chat-template"},
		{"documents", chats, `{` + hi + `,"documents":[{"text":"a"}]}`, "documents", "not supported"},
		{"a second start token", chats, `{` + hi + `,"add_special_tokens":true}`, "add_special_tokens", "not supported"},
		{"echo of a chat", chats, `{` + hi + `,"echo":true}`, "echo", "not supported"},
		{"special tokens as text", chats, `{` + hi + `,"skip_special_tokens":false}`, "skip_special_tokens", "never part of the text"},
		{"special tokens as text", completions, `{"prompt":"a","skip_special_tokens":false}`, "skip_special_tokens", "never part of the text"},
		{"some tokens", completions, `{"prompt":"a","allowed_token_ids":[1]}`, "allowed_token_ids", "not supported"},
		{"ids of tokens", completions, `{"prompt":"a","return_token_ids":true}`, "return_token_ids", "not supported"},
		{"fewer than none", chats, `{` + hi + `,"min_tokens":-1}`, "min_tokens", "outside 0"},
		{"top without", chats, `{` + hi + `,"top_logprobs":1}`, "top_logprobs", "logprobs"},
		{"top", chats, `{` + hi + `,"logprobs":true,"top_logprobs":21}`, "top_logprobs", "0 to 20"},
		{"n", chats, `{` + hi + `,"n":129}`, "n", "1 to 128"},
		{"half an n", chats, `{` + hi + `,"n":1.5}`, "n", "whole number"},
		{"text as a number", chats, `{` + hi + `,"seed":"1"}`, "seed", "whole number"},
		{"seed", chats, `{` + hi + `,"seed":99999999999999999999}`, "seed", "64 bits"},
		{"temperature", chats, `{` + hi + `,"temperature":"hot"}`, "temperature", "a number"},
		{"infinite", chats, `{` + hi + `,"temperature":1e300}`, "temperature", "too large"},
		{"most", chats, `{` + hi + `,"max_completion_tokens":-1}`, "max_completion_tokens", "outside 0"},
		{"bias of a word", chats, `{` + hi + `,"logit_bias":{"foo":1}}`, "logit_bias", `"foo" is not a token id`},
		{"no bias", chats, `{` + hi + `,"logit_bias":{"5":"x"}}`, "logit_bias", `"5" has to be a number`},
		{"stream", chats, `{` + hi + `,"stream":"yes"}`, "stream", "true or false"},
		{"stop", chats, `{` + hi + `,"stop":[1]}`, "stop", "a string or an array"},
		{"go on and begin", chats, `{` + hi + `,"continue_final_message":true,"add_generation_prompt":true}`, "continue_final_message", "together"},
		{"do not begin", chats, `{` + hi + `,"add_generation_prompt":false}`, "add_generation_prompt", "only together"},
		{"no prompt", completions, `{}`, "prompt", "missing"},
		{"empty prompts", completions, `{"prompt":[]}`, "prompt", "empty"},
		{"mixed prompts", completions, `{"prompt":["a",1]}`, "prompt", "a string, an array"},
		{"object", completions, `{"prompt":{"a":1}}`, "prompt", "a string, an array"},
		{"negative token", completions, `{"prompt":[-1]}`, "prompt", "token ids"},
		{"many prompts", completions, `{"prompt":[` + strings.Repeat(`"a",`, 128) + `"a"]}`, "prompt", "129 prompts are more than 128"},
		{"many answers", completions, `{"n":32,"prompt":["a","b","c","d","e"]}`, "prompt", "160 answers"},
		{"suffix", completions, `{"prompt":"a","suffix":"b"}`, "suffix", "not supported"},
		{"resumable, as a number", completions, `{"prompt":"a","stream":true,"resumable_for":60}`, "resumable_for", `has to be a string such as "60s"`},
		{"resumable, without a unit", completions, `{"prompt":"a","stream":true,"resumable_for":"60"}`, "resumable_for", "write it like 60s"},
		{"resumable, several answers", completions, `{"prompt":"a","stream":true,"n":2,"resumable_for":"60s"}`, "resumable_for", "needs n = 1"},
		{"resumable, several prompts", completions, `{"prompt":["a","b"],"stream":true,"resumable_for":"60s"}`, "resumable_for", "needs one prompt"},
		{"objectives", chats, `{` + hi + `,"slo":{"ttft":"1s"}}`, "slo", "of the gRPC API"},
		{"best of fewer", completions, `{"prompt":"a","n":3,"best_of":2}`, "best_of", "below n"},
		{"best of a stream", completions, `{"prompt":"a","n":2,"best_of":3,"stream":true}`, "best_of", "stream"},
		{"best of a chat", chats, `{` + hi + `,"n":2,"best_of":3}`, "best_of", "of completions"},
		{"best of a response", responses, `{"input":"a","best_of":2}`, "best_of", "of completions"},
		{"best of too many", completions, `{"prompt":["a","b"],"best_of":65}`, "prompt", "130 answers"},
		{"echo with likelihoods of a stream", completions, `{"prompt":"a","echo":true,"logprobs":1,"stream":true,"n":2}`, "echo", "n = 1"},
		{"echo that can be resumed", completions, `{"prompt":"a","echo":true,"logprobs":1,"stream":true,"resumable_for":"60s"}`, "resumable_for", "echo"},
		{"obfuscation", chats, `{` + hi + `,"stream_options":{"include_obfuscation":5}}`, "stream_options.include_obfuscation", "true or false"},
		{"prompt of a stream", completions, `{"prompt":"a","prompt_logprobs":1,"stream":true}`, "prompt_logprobs", "stream"},
		{"prompt, many", chats, `{` + hi + `,"prompt_logprobs":21}`, "prompt_logprobs", "0 to 20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := new(fake)
			w := ask(t, f, http.MethodPost, c.path, c.body)
			e := errorOf(t, w.Body.String())
			if w.Code != http.StatusBadRequest || e.Param != c.param || !strings.Contains(e.Message, c.message) || e.Type != "invalid_request_error" || e.Code == "" {
				t.Errorf("%d %+v, want %q: %q", w.Code, e, c.param, c.message)
			}
			if len(f.asked) != 0 {
				t.Error("it reached the backend")
			}
		})
	}
}

// A refusal that quotes a long text takes no memory for all of it: the body was counted, and no more.
func TestQuotesWithoutACopy(t *testing.T) {
	const length = 4 << 20
	text := strings.Repeat("a", length)
	made := func(body string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := ask(t, new(fake), http.MethodPost, completions, body)
		runtime.ReadMemStats(&after)
		if w.Code != http.StatusBadRequest || w.Body.Len() > 1000 {
			t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	// The other one reads as long a text, and quotes nothing of it.
	if quoted, read := made(`{"prompt":"a","service_tier":"`+text+`"}`), made(`{"prompt":"a","suffix":"`+text+`"}`); quoted > read+length {
		t.Errorf("the refusal made %d bytes, %d of them to quote %d", quoted, quoted-read, length)
	}
}

type errorObject struct{ Message, Type, Param, Code string }

func errorOf(t testing.TB, body string) errorObject {
	t.Helper()
	var object struct{ Error errorObject }
	if err := json.Unmarshal([]byte(body), &object); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return object.Error
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{` + hi + `}`, `{"prompt":"a","n":2,"stream":true}`, `{"prompt":[[1]],"logprobs":1}`, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]}`,
		`{"input":"a","instructions":"b"}`, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"o"}]}`,
		`{"input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{}}},"include":[""],"metadata":{"a":"b"},"conversation":{"id":1}}`,
		`{"logit_bias":{"1":2}}`, `{"prompt":[`, `{"stop":["a"],"max_tokens":0,"prompt":"x"}`, `{"prompt":[{}]}`, `{"messages":[null]}`, `{"tool_choice":{},"messages":{}}`,
		`{"input":["a","b"],"encoding_format":"base64","dimensions":4,"add_special_tokens":false}`, `{"input":[[1,2],[3]],"user":"u"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{chats, completions, responses, embeddings} {
			w := ask(t, &fake{words: []string{"a"}}, http.MethodPost, path, body)
			switch {
			case w.Code == http.StatusOK:
			case (w.Code == http.StatusBadRequest || path == responses && w.Code == http.StatusNotFound) && errorOf(t, w.Body.String()).Message != "":
			default:
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	})
}
