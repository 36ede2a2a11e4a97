package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// described is a file with one message and one service, in a package.
func described(pkg string) *descriptorpb.FileDescriptorProto {
	comment := func(text string, path ...int32) *descriptorpb.SourceCodeInfo_Location {
		return &descriptorpb.SourceCodeInfo_Location{Path: path, Span: []int32{0, 0, 1}, LeadingComments: &text}
	}
	return &descriptorpb.FileDescriptorProto{
		Name: proto.String("x.proto"), Package: &pkg, Syntax: proto.String("proto3"),
		Options: &descriptorpb.FileOptions{GoPackage: proto.String("example.com/x")},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("Ask"),
			Field: []*descriptorpb.FieldDescriptorProto{
				{Name: proto.String("names"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()},
				{Name: proto.String("next"), Number: proto.Int32(2), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String("." + pkg + ".Ask"), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
				{Name: proto.String("most"), Number: proto.Int32(3), Type: descriptorpb.FieldDescriptorProto_TYPE_UINT32.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Proto3Optional: proto.Bool(true), OneofIndex: proto.Int32(0)},
			},
			OneofDecl: []*descriptorpb.OneofDescriptorProto{{Name: proto.String("_most")}},
		}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Asks"), Method: []*descriptorpb.MethodDescriptorProto{
			{Name: proto.String("Answer"), InputType: proto.String("." + pkg + ".Ask"), OutputType: proto.String("." + pkg + ".Ask"), ServerStreaming: proto.Bool(true)},
		}}},
		SourceCodeInfo: &descriptorpb.SourceCodeInfo{Location: []*descriptorpb.SourceCodeInfo_Location{
			comment(" Ask asks.\n It goes on.\n\n And ends.\n", 4, 0), comment(" Of a | b < c.\n", 4, 0, 2, 0), comment(" Answer answers.\n", 6, 0, 2, 0),
		}},
	}
}

func page(t *testing.T, pkg string) (string, error) {
	t.Helper()
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{FileToGenerate: []string{"x.proto"}, ProtoFile: []*descriptorpb.FileDescriptorProto{described(pkg)}})
	if err != nil {
		t.Fatal(err)
	}
	return document(plugin.Files)
}

func TestDocument(t *testing.T) {
	got, err := page(t, "tandem.inference.v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| [tandem.inference.v1.Asks](#tandem.inference.v1.Asks) | `Answer` |",
		"<a id=\"tandem.inference.v1.Ask\"></a>\n\n### Ask\n\nAsk asks. It goes on.\n\nAnd ends.\n",
		"| `Answer` | [Ask](#tandem.inference.v1.Ask) | stream of [Ask](#tandem.inference.v1.Ask) | Answer answers. |",
		"| `names` | list of string | Of a \\| b &lt; c. |",
		"| `next` | [Ask](#tandem.inference.v1.Ask) |  |",
		"| `most` | uint32, optional |  |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
}

func TestPackageOfNobody(t *testing.T) {
	if _, err := page(t, "tandem.other.v1"); err == nil || !strings.Contains(err.Error(), "tandem.other.v1") {
		t.Errorf("a package that is for nobody: %v", err)
	}
}

func TestReasons(t *testing.T) {
	const source = `package api

// Reasons of errors.
const (
	// A router to its clients.

	ReasonQueueFull  = "QUEUE_FULL"  // RESOURCE_EXHAUSTED or UNAVAILABLE, again: too many wait
	ReasonClientGone = "CLIENT_GONE" // CANCELLED, no

	// A router to
	// itself.

	ReasonSilent = "SILENT" // UNAVAILABLE: it said nothing
)
`
	got, err := reasons("reason.go", source)
	if err != nil {
		t.Fatal(err)
	}
	const head = "\n\n| reason | status | try again? | meaning |\n|---|---|---|---|\n"
	want := "\n**A router to its clients**" + head +
		"| `QUEUE_FULL` | RESOURCE_EXHAUSTED or UNAVAILABLE | again | too many wait |\n| `CLIENT_GONE` | CANCELLED | no |  |\n" +
		"\n**A router to itself**" + head + "| `SILENT` | UNAVAILABLE |  | it said nothing |\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("the page ends otherwise than with %q:\n%s", want, got)
	}
	if _, err := reasons("reason.go", strings.Replace(source, " // CANCELLED, no", "", 1)); err == nil || !strings.Contains(err.Error(), "reason.go:8") {
		t.Errorf("a reason without a comment: %v", err)
	}
}
