package commands

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// mostFlags is how many flags the help of a command shows without being asked for all.
const mostFlags = 15

// addHelp gives the commands below root their help, and --help-all.
func addHelp(root *cobra.Command) {
	all := new(helpAll)
	root.PersistentFlags().Var(all, helpAllName, "print the help with all flags, grouped by topic")
	root.PersistentFlags().Lookup(helpAllName).NoOptDefVal = "true"
	settings.CommandLineOnly(root.PersistentFlags(), helpAllName)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		columns, _ := terminalSize(cmd.OutOrStdout())
		_, err := io.WriteString(cmd.OutOrStdout(), helpText(cmd, all.on, columns))
		if p := processOf(cmd.Root().Context()); err != nil && p.helpFailed != nil {
			*p.helpFailed = fmt.Errorf("print the help: %w", err)
		}
	})
}

const helpAllName = "help-all"

// helpAll is the value of --help-all. As for --help, nothing else is looked at once it is
// there: setting it fails with pflag.ErrHelp.
type helpAll struct{ on bool }

func (h *helpAll) String() string   { return "false" }
func (h *helpAll) Type() string     { return "bool" }
func (h *helpAll) IsBoolFlag() bool { return true }
func (h *helpAll) Set(string) error { h.on = true; return pflag.ErrHelp }

// helpText is the help of a command for a terminal of so many columns; 0: for none, which
// wraps no flags.
func helpText(cmd *cobra.Command, all bool, columns int) string {
	var text strings.Builder
	about := asCalled(cmd, strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))) // before its lines are filled
	fmt.Fprintf(&text, "%s\n\nUsage:\n", wrapped(about, columns))
	if cmd.Runnable() && !isGroup(cmd) {
		fmt.Fprintf(&text, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&text, "  %s COMMAND [flags]\n", cmd.CommandPath())
	}
	fmt.Fprintf(&text, "\nExamples:\n%s\n", cmd.Example)
	writeCommands(&text, cmd)
	writeFlags(&text, cmd, all, columns)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&text, "\n'%s COMMAND --help' says more about a command.\n", cmd.CommandPath())
	}
	return asCalled(cmd, text.String())
}

// asCalled is a text in which commands such as 'tandem workers' begin with how the program
// was called, so that they can be copied.
func asCalled(cmd *cobra.Command, text string) string {
	root := cmd.Root()
	names := slices.AppendSeq([]string{"--help", "COMMAND"}, commandNames(root))
	named := regexp.MustCompile(`(^|[^\w./-])` + root.Name() + `(\s+(?:` + strings.Join(names, "|") + `)\b)`)
	program := strings.ReplaceAll(root.DisplayName(), "$", "$$")
	return named.ReplaceAllString(text, "${1}"+program+"${2}")
}

// textColumns is how wide text for people is at most.
const textColumns = 80

// wrapped fills the lines of each paragraph of a text, up to textColumns, or columns if
// that is less and not 0. A paragraph with an indented line stays as it is.
func wrapped(text string, columns int) string {
	if columns == 0 || columns > textColumns {
		columns = textColumns
	}
	paragraphs := strings.Split(text, "\n\n")
	for i, paragraph := range paragraphs {
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			continue
		}
		paragraphs[i] = report.Wrap(paragraph, columns, "", "")
	}
	return strings.Join(paragraphs, "\n\n")
}

// writeCommands lists the commands below cmd, by cobra's groups if it has any.
func writeCommands(text *strings.Builder, cmd *cobra.Command) {
	list := func(title, group string) {
		heading := "\n" + title + ":\n"
		for _, child := range cmd.Commands() {
			if child.IsAvailableCommand() && child.GroupID == group {
				fmt.Fprintf(text, "%s  %-12s%s\n", heading, child.Name(), child.Short)
				heading = ""
			}
		}
	}
	for _, group := range cmd.Groups() {
		list(group.Title, group.ID)
	}
	title := "Commands"
	if len(cmd.Groups()) > 0 {
		title = "Other commands"
	}
	list(title, "")
}

// writeFlags lists the flags of cmd: those of mainFlags, or all.
func writeFlags(text *strings.Builder, cmd *cobra.Command, all bool, columns int) {
	cmd.InitDefaultHelpFlag()
	var flags []*pflag.Flag
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != helpAllName {
			flags = append(flags, f)
		}
	})
	section := func(title string, of []*pflag.Flag) {
		if len(of) == 0 {
			return
		}
		set := pflag.NewFlagSet(title, pflag.ContinueOnError)
		set.SortFlags = false
		for _, f := range of {
			set.AddFlag(f)
		}
		fmt.Fprintf(text, "\n%s:\n%s", title, set.FlagUsagesWrapped(columns))
	}
	mains := mainFlags[commandName(cmd)]
	if all && len(mains) > 0 {
		for _, group := range grouped(flags, flagGroups[commandName(cmd)]) {
			section(group.title, group.flags)
		}
		return
	}
	if len(mains) == 0 {
		section("Flags", flags)
		return
	}
	var shown []*pflag.Flag
	for _, name := range append(slices.Clone(mains), "help") {
		if f := cmd.Flags().Lookup(name); f != nil {
			shown = append(shown, f)
		}
	}
	section("Flags", append(shown, &pflag.Flag{
		Name: helpAllName, Usage: fmt.Sprintf("print the help with all %d flags, grouped by topic", len(flags)),
		Value: new(helpAll), DefValue: "false", NoOptDefVal: "true",
	}))
}

// commandName is the path of a command below the root.
func commandName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(pathOf(cmd), " ")
	return name
}

// pathOf is the path of a command, by whatever name the program was called.
func pathOf(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return cmd.Name()
	}
	return pathOf(cmd.Parent()) + " " + cmd.Name()
}

// flagsOf are the flags of one heading.
type flagsOf struct {
	title string
	flags []*pflag.Flag
}

// grouped puts flags under the headings of groups; those of none come last.
func grouped(flags []*pflag.Flag, groups []flagGroup) []flagsOf {
	out := make([]flagsOf, len(groups)+1)
	for i, group := range groups {
		out[i].title = group.title
	}
	out[len(groups)].title = "Other flags"
	for _, f := range flags {
		place, length := len(groups), 0
		for i, group := range groups {
			for _, name := range group.flags {
				is := f.Name == name || strings.HasSuffix(name, "-") && strings.HasPrefix(f.Name, name)
				if is && len(name) > length {
					place, length = i, len(name)
				}
			}
		}
		out[place].flags = append(out[place].flags, f)
	}
	return out
}
