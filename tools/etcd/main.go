// Command etcd is etcd's own server, but for one thing: unless it is told where, it keeps
// its data beside its binary, in etcd.data, and not in default.etcd of the folder that it
// was started in, which is often a checkout.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(arguments(os.Args, os.Getenv, os.Executable)) }

// arguments are args, the program's name first, with a data directory in front unless they,
// the environment or a file of settings may name one. A subcommand has no data.
func arguments(args []string, getenv func(string) string, executable func() (string, error)) []string {
	if getenv("ETCD_DATA_DIR") != "" || getenv("ETCD_CONFIG_FILE") != "" {
		return args
	}
	if len(args) == 0 || len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		return args
	}
	for _, arg := range args[1:] {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && (name == "config-file" || name == "data-dir") {
			return args
		}
	}
	program, err := executable()
	if err != nil {
		return args
	}
	return append([]string{args[0], "--data-dir=" + filepath.Join(filepath.Dir(program), "etcd.data")}, args[1:]...)
}
