// Package settings gives a command's flags their values: from the command line,
// else from the environment, else from a YAML file, else their defaults. There
// is one list of names, that of the flags; nothing is declared twice.
//
//   - Flag --max-tokens is the variable TANDEM_MAX_TOKENS. An empty variable counts as unset.
//     Variables finds those that match no flag, and tells them apart from the ones that
//     Kubernetes sets (a Service called tandem gives every pod TANDEM_PORT).
//   - In a file, "-" or "." joins nested keys to the flag's name. An unknown key is an error
//     that names the nearest flag.
//
// Only cmd/tandem may import it. It owns nothing and starts no goroutine.
package settings

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// environmentPrefix begins every variable that is read.
const environmentPrefix = "TANDEM_"

// Keys of the annotations by which a flag carries what this package knows of it.
const (
	annotationSource      = "tandem_source"
	annotationCommandLine = "tandem_command_line"
)

// CommandLineOnly marks flags that make no sense in an environment or a file:
// what is asked for this once, such as a prompt or the form of the output. It
// passes over names that are no flags of fs.
func CommandLineOnly(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = fs.SetAnnotation(name, annotationCommandLine, []string{"true"}) // it fails without the flag
	}
}

func commandLineOnly(f *pflag.Flag) bool {
	return f.Name == "help" || f.Name == "config" || len(f.Annotations[annotationCommandLine]) > 0
}

// EnvironmentName is the variable that sets a flag.
func EnvironmentName(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(flag))
}

// CommandLine is the Source of what was given there.
const CommandLine = "command line"

// Source says where a flag's value came from, after Apply: CommandLine, the
// variable's name, "FILE:LINE" or "default".
func Source(f *pflag.Flag) string {
	if source := f.Annotations[annotationSource]; len(source) == 1 {
		return source[0]
	}
	if f.Changed {
		return CommandLine
	}
	return "default"
}

// Apply sets those flags of fs, parsed already, that the command line did not
// set: from environ (as of os.Environ), then from the YAML file called file,
// which may be empty for none. Whoever has a flag --config finds its value, or
// that of TANDEM_CONFIG, with File.
//
// All of the file is checked, also what is set elsewhere. Errors name the
// variable, or the file and line, and say what would be right.
func Apply(fs *pflag.FlagSet, file string, environ []string) error {
	var inFile map[string]entry
	if file != "" {
		var err error
		if inFile, err = readFile(fs, file, false); err != nil {
			return err
		}
	}
	return apply(fs, inFile, variables(environ))
}

// apply sets the flags of fs that are not set yet, from variables, then from inFile.
func apply(fs *pflag.FlagSet, inFile map[string]entry, variables map[string]string) error {
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		if failed != nil || f.Changed || commandLineOnly(f) {
			return
		}
		name := EnvironmentName(f.Name)
		if value := variables[name]; value != "" {
			if err := fs.Set(f.Name, value); err != nil {
				failed = fmt.Errorf("environment variable %s: %s", name, Problem(f, value, err))
				return
			}
			setSource(f, name)
			return
		}
		if e, ok := inFile[f.Name]; ok {
			if err := e.set(fs, f); err != nil {
				failed = err
				return
			}
			setSource(f, fmt.Sprintf("%s:%d", e.file, e.line))
		}
	})
	return failed
}

// File is the configuration file to read: the value of fs's flag --config, else
// of TANDEM_CONFIG; empty where fs has no such flag or neither is set.
func File(fs *pflag.FlagSet, environ []string) string {
	f := fs.Lookup("config")
	if f == nil {
		return ""
	}
	if f.Changed {
		return f.Value.String()
	}
	if value := variables(environ)[EnvironmentName("config")]; value != "" {
		return value
	}
	return f.Value.String()
}

func setSource(f *pflag.Flag, source string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[annotationSource] = []string{source}
}

func variables(environ []string) map[string]string {
	found := map[string]string{}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			found[name] = value
		}
	}
	return found
}
