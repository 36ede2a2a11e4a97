// Command protoc-gen-apidoc writes docs/api.md from the comments of proto files, and of the Go file
// with the reasons of errors. buf runs it, as buf.gen.yaml says.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

const introduction = `# gRPC API

<!-- Made from the comments in proto/ and pkg/api/reason.go by "make generate". Change it there. -->

Every service, method, message and field of [` + "`proto`" + `](../proto). A field of a scalar type that is marked *optional* knows whether it is set; its default stands in its description. An unset message is absent. Errors are gRPC statuses with a [reason](#reasons-of-errors).

[client.md](client.md) is a client for Go. [openai.md](openai.md) describes the HTTP API.
`

// audiences are the packages in the order of the page, with who calls them.
var audiences = []struct{ name, audience string }{
	{"tandem.inference.v1", "For clients, at the router's address (`--listen`)."},
	{"tandem.control.v1", "For operators, at the router's address for them (`--control`), except for `Requests`, which is for clients. The records and messages that parts keep in etcd and send over NATS follow."},
	{"tandem.worker.v1", "Between the parts of a mesh: what routers ask of workers."},
	{"tandem.kvtransfer.v1", "Between the parts of a mesh: what workers and block stores send each other. [kv-transfer.md](kv-transfer.md) specifies it."},
}

func main() {
	var flags flag.FlagSet
	reasonsFile := flags.String("reasons", "", "Go file with the reasons of errors")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		page, err := document(plugin.Files)
		if err != nil {
			return err
		}
		table, err := reasons(*reasonsFile, nil)
		if err != nil {
			return err
		}
		_, err = plugin.NewGeneratedFile("api.md", "").Write([]byte(page + table))
		return err
	})
}

// document is the page of those files that are to be generated.
func document(files []*protogen.File) (string, error) {
	files = slices.DeleteFunc(slices.Clone(files), func(f *protogen.File) bool { return !f.Generate })
	// Files with services come first in their package.
	slices.SortFunc(files, func(a, b *protogen.File) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(min(len(b.Services), 1), min(len(a.Services), 1)), cmp.Compare(a.Desc.Path(), b.Desc.Path()))
	})
	w := new(strings.Builder)
	w.WriteString(introduction)
	contents(w, files)
	last := ""
	for _, f := range files {
		if rank(f) == len(audiences) {
			return "", fmt.Errorf("%s: the page does not know whom package %s is for: add it in tools/protoc-gen-apidoc", f.Desc.Path(), f.Desc.Package())
		}
		if name := string(f.Desc.Package()); name != last {
			last = name
			fmt.Fprintf(w, "\n## %s\n\n%s\n", name, audiences[rank(f)].audience)
		}
		for _, s := range f.Services {
			service(w, s)
		}
		for _, m := range f.Messages {
			message(w, m)
		}
		for _, e := range f.Enums {
			enum(w, e)
		}
	}
	return w.String(), nil
}

func rank(f *protogen.File) int {
	for i, a := range audiences {
		if a.name == string(f.Desc.Package()) {
			return i
		}
	}
	return len(audiences)
}

func contents(w *strings.Builder, files []*protogen.File) {
	w.WriteString("\n| service | methods |\n|---|---|\n")
	for _, f := range files {
		for _, s := range f.Services {
			var methods []string
			for _, m := range s.Methods {
				methods = append(methods, "`"+string(m.Desc.Name())+"`")
			}
			fmt.Fprintf(w, "| %s | %s |\n", link(s.Desc, string(s.Desc.FullName())), strings.Join(methods, ", "))
		}
	}
}

// heading begins what has a name of its own, to which links lead.
func heading(w *strings.Builder, kind string, d protoreflect.Descriptor, comment protogen.Comments) {
	fmt.Fprintf(w, "\n<a id=\"%s\"></a>\n\n### %s%s\n", d.FullName(), kind, d.Name())
	for _, paragraph := range paragraphs(comment) {
		fmt.Fprintf(w, "\n%s\n", paragraph)
	}
}

func service(w *strings.Builder, s *protogen.Service) {
	heading(w, "Service ", s.Desc, s.Comments.Leading)
	w.WriteString("\n| method | takes | gives | |\n|---|---|---|---|\n")
	for _, m := range s.Methods {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", m.Desc.Name(),
			stream(m.Desc.IsStreamingClient())+link(m.Input.Desc, string(m.Input.Desc.Name())),
			stream(m.Desc.IsStreamingServer())+link(m.Output.Desc, string(m.Output.Desc.Name())),
			cell(m.Comments.Leading))
	}
}

func stream(streams bool) string {
	if streams {
		return "stream of "
	}
	return ""
}

func message(w *strings.Builder, m *protogen.Message) {
	if m.Desc.IsMapEntry() {
		return
	}
	heading(w, "", m.Desc, m.Comments.Leading)
	if len(m.Fields) > 0 {
		w.WriteString("\n| field | type | |\n|---|---|---|\n")
	}
	for _, f := range m.Fields {
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", f.Desc.Name(), typeOf(f), cell(f.Comments.Leading))
	}
	for _, inner := range m.Messages {
		message(w, inner)
	}
	for _, inner := range m.Enums {
		enum(w, inner)
	}
}

func enum(w *strings.Builder, e *protogen.Enum) {
	heading(w, "", e.Desc, e.Comments.Leading)
	w.WriteString("\n| value | number | |\n|---|---|---|\n")
	for _, v := range e.Values {
		fmt.Fprintf(w, "| `%s` | %d | %s |\n", v.Desc.Name(), v.Desc.Number(), cell(v.Comments.Leading))
	}
}

func typeOf(f *protogen.Field) string {
	switch {
	case f.Desc.IsMap():
		return "map of " + one(f.Message.Fields[0]) + " to " + one(f.Message.Fields[1])
	case f.Desc.IsList():
		return "list of " + one(f)
	case f.Desc.HasOptionalKeyword():
		return one(f) + ", optional"
	case f.Oneof != nil:
		return one(f) + ", one of `" + string(f.Oneof.Desc.Name()) + "`"
	}
	return one(f)
}

// one is the type of a field, or of an element of it.
func one(f *protogen.Field) string {
	switch {
	case f.Message != nil:
		return link(f.Message.Desc, string(f.Message.Desc.Name()))
	case f.Enum != nil:
		return link(f.Enum.Desc, string(f.Enum.Desc.Name()))
	}
	return f.Desc.Kind().String()
}

// link leads to a type of ours, or to Google's page of it.
func link(d protoreflect.Descriptor, text string) string {
	name := string(d.FullName())
	if known, is := strings.CutPrefix(name, "google.protobuf."); is {
		return "[" + text + "](https://protobuf.dev/reference/protobuf/google.protobuf/#" + strings.ToLower(known) + ")"
	}
	return "[" + text + "](#" + name + ")"
}

// paragraphs are those of a comment, each in one line.
func paragraphs(comment protogen.Comments) (all []string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(comment)), "\n\n") {
		if line := strings.Join(strings.Fields(paragraph), " "); line != "" {
			all = append(all, strings.ReplaceAll(line, "<", "&lt;"))
		}
	}
	return all
}

func cell(comment protogen.Comments) string {
	return strings.ReplaceAll(strings.Join(paragraphs(comment), "<br>"), "|", "\\|")
}
