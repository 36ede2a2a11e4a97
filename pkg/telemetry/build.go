package telemetry

import (
	"runtime/debug"
	"strings"
	"time"
)

// shortRevision is how many digits of a commit people read.
const shortRevision = 12

// version and revision are set by the linker where the build knows them better than Go
// does: -X github.com/tandem-serving/tandem/pkg/telemetry.version=v1.2.3. The script
// tools/version makes the flags.
var version, revision string

// Build says what the running binary was made from.
type Build struct {
	// Version is the release, or a pseudo-version made of the commit and its time; "devel"
	// for a build that was told neither, as by `go run`.
	Version string `json:"version"`
	// Revision is the commit, with "-dirty" if there were changes on top of it;
	// empty if the build left it out, as `go run` does.
	Revision string `json:"revision,omitempty"`
	// Go is the version of the Go release.
	Go string `json:"go"`
}

// ReadBuild reads what the linker left in the binary: what the build set, else what Go
// stamped.
func ReadBuild() Build {
	build := readStamp()
	if version != "" {
		build.Version = version
	}
	if revision != "" {
		build.Revision = revision
	}
	return build
}

func readStamp() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Build{Version: "devel"}
	}
	return buildOf(info)
}

// buildOf says what the Go command stamped. Builds in a workspace have a commit and no
// version: theirs is the pseudo-version that Go gives a module at that commit.
func buildOf(info *debug.BuildInfo) Build {
	build := Build{Version: "devel", Go: info.GoVersion}
	var committed time.Time
	modified := false
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			build.Revision = setting.Value
		case "vcs.time":
			committed, _ = time.Parse(time.RFC3339, setting.Value)
		case "vcs.modified":
			modified = setting.Value == "true"
		}
	}
	switch version := info.Main.Version; {
	case version != "" && version != "(devel)":
		build.Version = version
	case len(build.Revision) >= shortRevision && !committed.IsZero():
		build.Version = "v0.0.0-" + committed.UTC().Format("20060102150405") + "-" + build.Revision[:shortRevision]
		if modified {
			build.Version += "+dirty"
		}
	}
	if modified && build.Revision != "" {
		build.Revision += "-dirty"
	}
	return build
}

// String is one line for people: the version, the first twelve digits of the
// commit, and the Go release.
func (b Build) String() string {
	var s strings.Builder
	s.WriteString(b.Version)
	if b.Revision != "" {
		revision, dirty, _ := strings.Cut(b.Revision, "-")
		s.WriteString(" (" + revision[:min(shortRevision, len(revision))])
		if dirty != "" {
			s.WriteString("-" + dirty)
		}
		s.WriteString(")")
	}
	return s.String() + " " + b.Go
}
