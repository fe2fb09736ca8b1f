package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

func versionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, as --version does", Args: cobra.NoArgs, Example: "  millrace version",
		Run: func(*cobra.Command, []string) { a.Say("millrace %s", thisVersion()) },
	}
}

// thisVersion describes the version of this program.
func thisVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Sprintf("of an unknown version (%s %s/%s)", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	of := ""
	if revision := settings["vcs.revision"]; revision != "" {
		of = "revision " + revision[:min(len(revision), 12)]
		if settings["vcs.modified"] == "true" {
			of += " with local changes"
		}
		of += ", "
	}
	return fmt.Sprintf("%s (%s%s %s/%s)", info.Main.Version, of, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
