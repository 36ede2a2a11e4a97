package api_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// words checks one enum's and returns its name in proto.
func words[E interface {
	~int32
	protoreflect.Enum
}](t *testing.T, want string) protoreflect.FullName {
	t.Helper()
	enum := E(0).Descriptor()
	if got := strings.Join(api.Names[E](), " "); got != want {
		t.Errorf("%s: %q, want %q", enum.Name(), got, want)
	}
	for i, name := range strings.Fields(want) {
		value := E(enum.Values().Get(i + 1).Number())
		if got, ok := api.Parse[E](name); !ok || got != value || api.Name(value) != name {
			t.Errorf("%s: %q is %v %v, and %v is %q", enum.Name(), name, got, ok, value, api.Name(value))
		}
	}
	for _, none := range []string{"", "unspecified", strings.ToUpper(want), string(enum.Values().Get(1).Name()), "1", "99"} {
		if got, ok := api.Parse[E](none); ok {
			t.Errorf("%s: %q is %v", enum.Name(), none, got)
		}
	}
	if got := api.Name(E(0)) + " " + api.Name(E(99)) + " " + api.Name(E(-1)); got != "unspecified 99 -1" {
		t.Errorf("%s: %q", enum.Name(), got)
	}
	return enum.FullName()
}

// The words are public: they are keys of etcd, subjects of NATS, flags and labels.
func TestNamesOfEveryEnum(t *testing.T) {
	checked := []protoreflect.FullName{
		words[controlv1.RankBy](t, "ttft e2e"),
		words[controlv1.Role](t, "router prefill decode kvtransfer"),
		words[controlv1.WorkerState](t, "serving draining drained"),
		words[inferencev1.FinishReason](t, "stop length"),
		words[inferencev1.Mode](t, "auto disaggregated aggregated"),
		words[kvtransferv1.AbortReason](t, "cancelled finished failed acknowledged"),
		words[kvtransferv1.Encoding](t, "native int8 lent shared"),
		words[kvtransferv1.FailReason](t, "cancelled expired checksum incomplete protocol shutdown device"),
		words[kvtransferv1.RefuseReason](t, "wrong_epoch unknown_transfer bad_secret layout already_open busy encoding wrong_sender"),
		words[workerv1.FetchVerdict](t, "given stale failed"),
	}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if enums := file.Enums(); strings.HasPrefix(string(file.Package()), "tandem.") {
			for i := range enums.Len() {
				if name := enums.Get(i).FullName(); !slices.Contains(checked, name) {
					t.Errorf("nothing checks the words of %s", name)
				}
			}
		}
		return true
	})
}
