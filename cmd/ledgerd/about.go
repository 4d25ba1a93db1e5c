package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/web"
)

// build names this program in the log's ledger.opened events.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	name := info.Main.Version
	if name == "" {
		name = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && name == "(devel)" {
			name += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return name
}

// semver is the version that the micro service shows, which must be semantic.
func semver() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") {
		return strings.TrimPrefix(info.Main.Version, "v")
	}
	return "0.0.0-devel"
}

func versionInfo() web.Version {
	return web.Version{Build: build(), Rules: ledger.Rules, Format: events.Format, Go: runtime.Version()}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Say which build this is, which rules it judges by and which format it writes",
		Example: `  ledgerd version -o json`,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo()
			return a.showStruct(v, func() {
				fmt.Fprintf(a.stdout, "ledgerd %s  rules %d  format %s  %s\n", v.Build, v.Rules, v.Format, v.Go)
			})
		},
	}
}

func (a *app) errorsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "errors [CODE]",
		Short: "List the reason codes, or say what one means",
		Long:  "List the reason codes, or say what one means. A denial exits with the code of its reason.\n\n" + exitCodes,
		Example: `  ledgerd errors
  ledgerd errors actor_is_not_owner`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			infos := reason.All()
			if len(args) == 1 {
				info, ok := client.ReasonOf(client.Reason(args[0]))
				if !ok {
					return usagef("%q is no reason code; \"ledgerd errors\" lists them", args[0])
				}
				infos = []reason.Info{info}
			}
			items := make([][]byte, len(infos))
			for i, info := range infos {
				b, err := json.Marshal(map[string]any{
					"reason_code": info.Code, "group": info.Group, "allowed": info.Allowed, "number": info.Number,
					"exit_code": info.Exit, "retryable": info.Retryable, "message": info.Text,
				})
				if err != nil {
					return fmt.Errorf("encode: %w", err)
				}
				items[i] = b
			}
			return a.showList(items, func() {
				w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
				defer w.Flush()
				fmt.Fprintln(w, "CODE\tNUMBER\tEXIT\tRETRY\tMEANING")
				for _, info := range infos {
					fmt.Fprintf(w, "%s\t%d\t%d\t%t\t%s\n", info.Code, info.Number, info.Exit, info.Retryable, info.Text)
				}
			})
		},
	}
}
